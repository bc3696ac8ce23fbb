// Package interop has the tests with GitLab's Go implementation of the plugin protocol.
//
// scripts/test builds fleeting's dummy plugin and the nesting daemon. The imports keep their modules in go.mod.
package interop

import (
	_ "gitlab.com/gitlab-org/fleeting/fleeting/plugin"
	_ "gitlab.com/gitlab-org/fleeting/nesting/hypervisor/tart"
)
