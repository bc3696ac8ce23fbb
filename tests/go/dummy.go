// Package interop holds the tests against the Go side of the plugin protocol.
//
// The import keeps the modules of fleeting's dummy plugin, which scripts/test builds, in go.mod.
package interop

import _ "gitlab.com/gitlab-org/fleeting/fleeting/plugin"
