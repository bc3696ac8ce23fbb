package interop

import (
	"os"
	"testing"

	"gitlab.com/gitlab-org/fleeting/fleeting/integration"
)

// The suite that fleeting offers to every plugin: scale up and down, and a command over its connector.
func TestLocalPassesTheProvisioningSuite(t *testing.T) {
	executable := os.Getenv("MUSTER_TEST_LOCAL")
	if executable == "" {
		t.Fatal("MUSTER_TEST_LOCAL does not name the executable of fleeting-plugin-local")
	}
	integration.TestProvisioning(t, executable, integration.Config{
		PluginConfig: map[string]any{"name": "go", "max_size": 3},
		MaxInstances: 3,
	})
}
