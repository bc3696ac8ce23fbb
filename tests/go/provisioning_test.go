package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gitlab.com/gitlab-org/fleeting/fleeting/integration"
)

// runSuite runs the provisioning suite of fleeting: scale up, run a command over the connector, and scale down.
func runSuite(t *testing.T, variable string, config map[string]any) {
	t.Helper()
	executable := os.Getenv(variable)
	if executable == "" {
		t.Fatalf("%s is not set to the path of the plugin's executable", variable)
	}
	integration.TestProvisioning(t, executable, integration.Config{PluginConfig: config, MaxInstances: 3})
}

func TestLocalPassesTheProvisioningSuite(t *testing.T) {
	runSuite(t, "MUSTER_TEST_LOCAL", map[string]any{"name": "go", "max_size": 3})
}

// The plugin `script` with the example script in shell.
func TestScriptPassesTheProvisioningSuite(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
		missing(t, "/usr/sbin/sshd does not exist (Debian: openssh-server)")
	}
	example, err := filepath.Abs("../../examples/plugins/shell/sshd-group")
	if err != nil {
		t.Fatal(err)
	}
	runSuite(t, "MUSTER_TEST_SCRIPT", map[string]any{
		"command":  []string{example},
		"settings": map[string]any{"directory": filepath.Join(t.TempDir(), "group")},
	})
}

// The plugin `static` with three machines, all of which are the same SSH server.
func TestStaticPassesTheProvisioningSuite(t *testing.T) {
	server := startSSH(t)
	var machines []map[string]any
	for n := range 3 {
		machines = append(machines, map[string]any{
			"name": fmt.Sprintf("machine-%d", n), "address": server.address, "username": server.user, "key_path": server.key,
		})
	}
	runSuite(t, "MUSTER_TEST_STATIC", map[string]any{
		"machines": machines, "state_file": filepath.Join(t.TempDir(), "leases.json"), "health_interval_s": 1,
	})
}

// The plugin `docker-machine` with a fake docker-machine program, all of whose machines are the same SSH server.
func TestDockerMachinePassesTheProvisioningSuite(t *testing.T) {
	server := startSSH(t)
	fake, err := filepath.Abs("../../plugins/docker-machine/tests/fake/docker-machine")
	if err != nil {
		t.Fatal(err)
	}
	storage := t.TempDir()
	key, err := os.ReadFile(server.key)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"ssh-ip": server.host, "ssh-port": server.port, "ssh-user": server.user, "ssh-key": string(key),
	} {
		if err := os.WriteFile(filepath.Join(storage, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runSuite(t, "MUSTER_TEST_DOCKER_MACHINE", map[string]any{
		"MachineDriver": "fake", "MachineName": "auto-%s", "prefix": "go-", "max_size": 3,
		"executable": fake, "storage_path": storage, "removal_interval_s": 0,
	})
}

// The example plugins in other languages.
func TestExamplesPassTheProvisioningSuite(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
		missing(t, "/usr/sbin/sshd does not exist (Debian: openssh-server)")
	}
	for language, variable := range map[string]string{
		"Go":     "MUSTER_TEST_GO_EXAMPLE",
		"Python": "MUSTER_TEST_PYTHON_EXAMPLE",
		"Rust":   "MUSTER_TEST_RUST_EXAMPLE",
	} {
		t.Run(language, func(t *testing.T) {
			if os.Getenv(variable) == "" {
				missing(t, variable+" is not set to the path of the executable; scripts/test prints why")
			}
			runSuite(t, variable, map[string]any{"max_size": 3})
		})
	}
}
