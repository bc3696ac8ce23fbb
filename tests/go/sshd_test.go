package interop

import (
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"testing"
	"time"
)

// missing reports a missing prerequisite: it skips the test, or fails it with MUSTER_TEST_REQUIRE=1.
func missing(t *testing.T, message string) {
	t.Helper()
	if os.Getenv("MUSTER_TEST_REQUIRE") == "1" {
		t.Fatalf("MUSTER_TEST_REQUIRE=1, but %s", message)
	}
	t.Skip(message)
}

// sshServer is an OpenSSH server on this host.
type sshServer struct{ address, host, port, user, key string }

// startSSH starts an OpenSSH server that is killed at the end of the test.
func startSSH(t *testing.T) sshServer {
	t.Helper()
	const sshd = "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		missing(t, sshd+" does not exist (Debian: openssh-server)")
	}
	home := t.TempDir()
	for _, key := range []string{"host", "login"} {
		command := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(home, key))
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, output)
		}
	}
	// sshd requires this directory if it runs as root. The package creates it only when the service starts.
	_ = os.MkdirAll("/run/sshd", 0o755)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	host, port, _ := net.SplitHostPort(address)
	listener.Close()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(sshd, "-D", "-e", "-f", "/dev/null", "-p", port, "-h", filepath.Join(home, "host"),
		"-oListenAddress="+host, "-oStrictModes=no", "-oPidFile=none",
		"-oAuthorizedKeysFile="+filepath.Join(home, "login.pub"))
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	for deadline := time.Now().Add(time.Minute); ; {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("failed to connect to sshd at %s: %v", address, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return sshServer{address, host, port, me.Username, filepath.Join(home, "login")}
}
