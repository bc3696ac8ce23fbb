// GitLab's Go host runs one of Muster's plugins. scripts/test starts these tests and sets the path of the plugin's executable.
package interop

import (
	"context"
	"os"
	"testing"
	"time"

	"gitlab.com/gitlab-org/fleeting/fleeting"
	"gitlab.com/gitlab-org/fleeting/fleeting/provider"
)

func TestGoHostRunsToyPlugin(t *testing.T) {
	executable := os.Getenv("MUSTER_TEST_TOY")
	if executable == "" {
		t.Fatal("MUSTER_TEST_TOY is not set to the path of fleeting-plugin-toy")
	}
	runner, err := fleeting.RunPlugin(executable, []byte(`{"NAME":"go","max_size":5}`))
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Kill()

	updates := make(chan fleeting.Instance, 100)
	provisioner, err := fleeting.Init(
		context.Background(), nil, runner.InstanceGroup(),
		fleeting.WithMaxSize(5),
		fleeting.WithUpdateIntervalWhenExpecting(10*time.Millisecond),
		fleeting.WithSubscriber(func(instances []fleeting.Instance) {
			for _, instance := range instances {
				updates <- instance
			}
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer provisioner.Shutdown(context.Background())

	wait := func(state provider.State, n int) {
		t.Helper()
		timeout := time.After(time.Minute)
		seen := map[string]bool{}
		for len(seen) < n {
			select {
			case instance := <-updates:
				if instance.State() == state {
					seen[instance.ID()] = true
				}
			case <-timeout:
				t.Fatalf("%d of %d instances became %v", len(seen), n, state)
			}
		}
	}

	provisioner.Request(3)
	wait(provider.StateRunning, 3)
	instances := provisioner.Instances()
	if len(instances) != 3 {
		t.Fatalf("expected 3 instances, got %d", len(instances))
	}
	info, err := instances[0].ConnectInfo(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if info.InternalAddr != "127.0.0.1" || info.Timeout != 10*time.Minute {
		t.Fatalf("unexpected connect info: %+v", info)
	}
	for _, instance := range instances {
		instance.Delete()
	}
	wait(provider.StateDeleted, 3)
}
