// The real Go host runs a plugin of ours. Started by scripts/test, which names the plugin's executable.
package interop

import (
	"context"
	"os"
	"testing"
	"time"

	"gitlab.com/gitlab-org/fleeting/fleeting"
	"gitlab.com/gitlab-org/fleeting/fleeting/provider"
)

func TestToyUnderTheGoHost(t *testing.T) {
	executable := os.Getenv("MUSTER_TEST_TOY")
	if executable == "" {
		t.Fatal("MUSTER_TEST_TOY does not name the executable of fleeting-plugin-toy")
	}
	runner, err := fleeting.RunPlugin(executable, []byte(`{"NAME":"go","max_size":5}`))
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Kill()

	changed := make(chan fleeting.Instance, 100)
	provisioner, err := fleeting.Init(
		context.Background(), nil, runner.InstanceGroup(),
		fleeting.WithMaxSize(5),
		fleeting.WithUpdateIntervalWhenExpecting(10*time.Millisecond),
		fleeting.WithSubscriber(func(instances []fleeting.Instance) {
			for _, instance := range instances {
				changed <- instance
			}
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer provisioner.Shutdown(context.Background())

	wait := func(state provider.State, n int) {
		t.Helper()
		limit := time.After(time.Minute)
		seen := map[string]bool{}
		for len(seen) < n {
			select {
			case instance := <-changed:
				if instance.State() == state {
					seen[instance.ID()] = true
				}
			case <-limit:
				t.Fatalf("%d of %d instances became %v", len(seen), n, state)
			}
		}
	}

	provisioner.Request(3)
	wait(provider.StateRunning, 3)
	instances := provisioner.Instances()
	if len(instances) != 3 {
		t.Fatalf("%d instances instead of 3", len(instances))
	}
	info, err := instances[0].ConnectInfo(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if info.InternalAddr != "127.0.0.1" || info.Timeout != 10*time.Minute {
		t.Fatalf("connect info arrived as %+v", info)
	}
	for _, instance := range instances {
		instance.Delete()
	}
	wait(provider.StateDeleted, 3)
}
