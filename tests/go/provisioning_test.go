package interop

import (
	"os"
	"path/filepath"
	"testing"

	"gitlab.com/gitlab-org/fleeting/fleeting/integration"
)

// The suite that fleeting offers to every plugin: scale up and down, and a command over its connector.
func suite(t *testing.T, variable string, config map[string]any) {
	t.Helper()
	executable := os.Getenv(variable)
	if executable == "" {
		t.Fatalf("%s does not name the plugin's executable", variable)
	}
	integration.TestProvisioning(t, executable, integration.Config{PluginConfig: config, MaxInstances: 3})
}

func TestLocalPassesTheProvisioningSuite(t *testing.T) {
	suite(t, "MUSTER_TEST_LOCAL", map[string]any{"name": "go", "max_size": 3})
}

// The example in shell, behind the plugin `script`.
func TestScriptPassesTheProvisioningSuite(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
		t.Skip("there is no /usr/sbin/sshd (Debian: openssh-server)")
	}
	example, err := filepath.Abs("../../examples/plugins/shell/sshd-group")
	if err != nil {
		t.Fatal(err)
	}
	suite(t, "MUSTER_TEST_SCRIPT", map[string]any{
		"command":  []string{example},
		"settings": map[string]any{"directory": filepath.Join(t.TempDir(), "group")},
	})
}

// The examples in other languages, each a plugin by itself.
func TestExamplesPassTheProvisioningSuite(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
		t.Skip("there is no /usr/sbin/sshd (Debian: openssh-server)")
	}
	for language, variable := range map[string]string{
		"Go":     "MUSTER_TEST_GO_EXAMPLE",
		"Python": "MUSTER_TEST_PYTHON_EXAMPLE",
		"Rust":   "MUSTER_TEST_RUST_EXAMPLE",
	} {
		t.Run(language, func(t *testing.T) {
			if os.Getenv(variable) == "" {
				t.Skipf("%s does not name the executable", variable)
			}
			suite(t, variable, map[string]any{"max_size": 3})
		})
	}
}
