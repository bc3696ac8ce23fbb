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
