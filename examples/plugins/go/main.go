// An instance group in Go: each instance is an OpenSSH server on this host.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"gitlab.com/gitlab-org/fleeting/fleeting/plugin"
	"gitlab.com/gitlab-org/fleeting/fleeting/provider"
)

// Group is the instance group. Its exported fields are the keys of plugin_config.
type Group struct {
	MaxSize int `json:"max_size"`

	settings  provider.Settings
	root      string
	mu        sync.Mutex
	created   int
	instances map[string]*instance
}

type instance struct {
	addr string
	sshd *exec.Cmd
	// Closed when sshd has exited.
	exited chan struct{}
}

func (g *Group) Init(_ context.Context, _ hclog.Logger, settings provider.Settings) (provider.ProviderInfo, error) {
	if g.MaxSize == 0 {
		g.MaxSize = 10
	}
	_ = os.Mkdir("/run/sshd", 0o755)
	g.settings, g.instances = settings, map[string]*instance{}
	root, err := os.MkdirTemp("", "sshd-group-")
	g.root = root
	return provider.ProviderInfo{ID: "sshd/go", MaxSize: g.MaxSize, Version: "0.1.0"}, err
}

func (g *Group) Update(_ context.Context, report func(string, provider.State)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, inst := range g.instances {
		select {
		case <-inst.exited:
			report(id, provider.StateTimeout)
			delete(g.instances, id)
		default:
			report(id, provider.StateRunning)
		}
	}
	return nil
}

func (g *Group) Increase(_ context.Context, n int) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for accepted := 0; accepted < n; accepted++ {
		if len(g.instances) >= g.MaxSize {
			return accepted, nil
		}
		if err := g.create(); err != nil {
			return accepted, err
		}
	}
	return n, nil
}

func (g *Group) create() error {
	g.created++
	id := fmt.Sprintf("go-%d-%d", os.Getpid(), g.created)
	home := filepath.Join(g.root, id)
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	for _, key := range []string{"host", "login"} {
		if err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(home, key)).Run(); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	listener.Close()
	inst := &instance{addr: addr, exited: make(chan struct{}), sshd: exec.Command("/usr/sbin/sshd", "-D", "-f", "/dev/null", "-p", port,
		"-h", filepath.Join(home, "host"), "-E", filepath.Join(home, "log"), "-oListenAddress=127.0.0.1", "-oStrictModes=no",
		"-oAuthorizedKeysFile="+filepath.Join(home, "login.pub"), "-oPidFile=none", "-oPasswordAuthentication=no", "-oMaxSessions=100")}
	if err := inst.sshd.Start(); err != nil {
		return err
	}
	go func() { _ = inst.sshd.Wait(); close(inst.exited) }()
	g.instances[id] = inst
	return nil
}

func (g *Group) Decrease(_ context.Context, ids []string) ([]string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		if inst := g.instances[id]; inst != nil {
			_ = inst.sshd.Process.Kill()
			delete(g.instances, id)
			_ = os.RemoveAll(filepath.Join(g.root, id))
		}
	}
	return ids, nil
}

func (g *Group) ConnectInfo(_ context.Context, id string) (provider.ConnectInfo, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	inst := g.instances[id]
	if inst == nil {
		return provider.ConnectInfo{}, fmt.Errorf("instance %s does not exist", id)
	}
	key, err := os.ReadFile(filepath.Join(g.root, id, "login"))
	info := provider.ConnectInfo{ConnectorConfig: g.settings.ConnectorConfig, ID: id, InternalAddr: inst.addr, ExternalAddr: inst.addr}
	if current, err := user.Current(); info.Username == "" && err == nil {
		info.Username = current.Username
	}
	info.Key = key
	return info, err
}

func (g *Group) Heartbeat(_ context.Context, id string) error {
	_, err := g.ConnectInfo(context.Background(), id)
	return err
}

func (g *Group) Suspend(context.Context, []string) ([]string, error) { return nil, fmt.Errorf("not supported") }

func (g *Group) Resume(context.Context, []string) ([]string, error) { return nil, fmt.Errorf("not supported") }

// Shutdown kills the remaining instances, because they must not outlive the plugin.
func (g *Group) Shutdown(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, inst := range g.instances {
		_ = inst.sshd.Process.Kill()
		select {
		case <-inst.exited:
		case <-time.After(time.Second):
		}
	}
	return os.RemoveAll(g.root)
}

func main() {
	plugin.Main(&Group{}, plugin.VersionInfo{Name: "fleeting-plugin-sshd", Version: "0.1.0"})
}
