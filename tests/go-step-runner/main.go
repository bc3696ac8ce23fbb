// GitLab's client of a step-runner, driven by a test: each line of standard input is a call, and each line of standard output its answer, both in
// JSON. The test builds this program inside the source of GitLab's step-runner, because GitLab's client has no module of its own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"gitlab.com/gitlab-org/step-runner/pkg/api/client"
	"gitlab.com/gitlab-org/step-runner/pkg/api/client/extended"
)

// call is a call of the client. Each call uses only some of the fields.
type call struct {
	Call      string            `json:"call"`
	Program   []string          `json:"program"` // Program whose input and output are the connection.
	Socket    string            `json:"socket"`
	ID        string            `json:"id"`
	Dir       string            `json:"dir"`
	Steps     string            `json:"steps"`
	Env       map[string]string `json:"env"`
	Variables []client.Variable `json:"variables"`
	Offset    int64             `json:"offset"`
	StopAfter int               `json:"stop_after"` // Number of bytes after which reading the log fails. 0 means no limit.
	CancelAt  string            `json:"cancel_at"`  // Text in the log at which the call is canceled.
}

type answer struct {
	Log    string           `json:"log"`
	Offset int64            `json:"offset"`
	States map[string]state `json:"states"`
	Error  string           `json:"error"`
	Code   string           `json:"code"` // gRPC code of the error.
}

type state struct {
	State   string `json:"state"`
	Message string `json:"message"`
	Ended   bool   `json:"ended"`
}

// connector opens connections, as GitLab's client requires.
type connector call

func (c connector) Dial() (*grpc.ClientConn, error) {
	dial := func(context.Context, string) (net.Conn, error) {
		if len(c.Program) == 0 {
			return net.Dial("unix", c.Socket)
		}
		return start(c.Program)
	}
	return grpc.NewClient("passthrough:step-runner", grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// processConn is a connection over standard input and output of a process.
type processConn struct {
	io.Reader
	io.WriteCloser
	process *exec.Cmd
}

func start(words []string) (net.Conn, error) {
	process := exec.Command(words[0], words[1:]...)
	input, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return processConn{output, input, process}, process.Start()
}

func (c processConn) Close() error {
	c.WriteCloser.Close()
	return c.process.Wait()
}
func (processConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (processConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (processConn) SetDeadline(time.Time) error      { return nil }
func (processConn) SetReadDeadline(time.Time) error  { return nil }
func (processConn) SetWriteDeadline(time.Time) error { return nil }

// sink collects a log. It can fail after a number of bytes, and cancel the call at a text.
type sink struct {
	text   strings.Builder
	call   call
	cancel func()
}

func (s *sink) Write(data []byte) (int, error) {
	stops := s.call.StopAfter > 0 && s.text.Len()+len(data) > s.call.StopAfter
	if stops {
		data = data[:s.call.StopAfter-s.text.Len()]
	}
	s.text.Write(data)
	if s.call.CancelAt != "" && strings.Contains(s.text.String(), s.call.CancelAt) {
		s.cancel()
	}
	if stops {
		return len(data), fmt.Errorf("stopped after %d bytes", s.call.StopAfter)
	}
	return len(data), nil
}

func (a *answer) add(statuses ...client.Status) {
	for _, status := range statuses {
		a.States[status.Id] = state{status.State.String(), status.Message, !status.EndTime.IsZero()}
	}
}

// perform makes a call over a new connection.
func perform(c call) answer {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result := answer{States: map[string]state{}}
	logs := &sink{call: c, cancel: cancel}
	request := &client.RunRequest{Id: c.ID, WorkDir: c.Dir, Env: c.Env, Steps: c.Steps, Variables: c.Variables}
	runner, err := extended.New(connector(c))
	if err == nil {
		var one client.Status
		var all []client.Status
		switch c.Call {
		case "run_and_follow":
			one, err = runner.RunAndFollow(ctx, request, &extended.FollowOutput{Logs: logs})
			result.add(one)
		case "run":
			err = runner.Run(ctx, request)
		case "follow":
			result.Offset, err = runner.FollowLogs(ctx, c.ID, c.Offset, logs)
		case "status":
			one, err = runner.Status(ctx, c.ID)
			result.add(one)
		case "list":
			all, err = runner.ListJobs(ctx)
			result.add(all...)
		case "close":
			err = runner.Close(ctx, c.ID)
		default:
			err = fmt.Errorf("%q is not a valid call", c.Call)
		}
		runner.CloseConn()
	}
	result.Log = logs.text.String()
	if err != nil {
		result.Error, result.Code = err.Error(), status.Code(err).String()
	}
	return result
}

func main() {
	log.SetOutput(io.Discard) // GitLab's client logs the end of each stream.
	lines, answers := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c call
		if err := json.Unmarshal(line, &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := answers.Encode(perform(c)); err != nil {
			return
		}
	}
}
