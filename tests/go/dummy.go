// Package interop holds the tests against the Go side of the plugin protocol.
//
// The imports keep the modules of fleeting's dummy plugin and of the nesting daemon, which scripts/test builds, in go.mod.
package interop

import (
	_ "gitlab.com/gitlab-org/fleeting/fleeting/plugin"
	_ "gitlab.com/gitlab-org/fleeting/nesting/hypervisor/tart"
)
