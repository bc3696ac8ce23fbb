#!/usr/bin/env python3
"""An instance group in Python: each instance is an OpenSSH server on this host. Needs grpcio and grpcio-tools."""
import concurrent.futures, json, os, pathlib, secrets, shutil, signal, socket, subprocess, sys, tempfile, threading

import grpc

PROTO = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(PROTO))
pb, rpc = grpc.protos_and_services("instance_group.proto")
State = pb.UpdateResponse.State


class Group(rpc.InstanceGroupServicer):
    """Implements the calls of the protocol. `instances` has the port and the process of each instance."""

    def Init(self, request, context):
        config = json.loads(request.config) or {}
        self.connector = request.settings.connector_config
        self.max_size = config.get("max_size", 10)
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="sshd-group-"))
        self.instances = {}
        os.makedirs("/run/sshd", exist_ok=True) if os.geteuid() == 0 else None
        return pb.InitResponse(id="sshd/" + socket.gethostname(), max_size=self.max_size, version="0.1.0")

    def Update(self, request, context):
        for name, (port, process) in list(self.instances.items()):
            running = process.poll() is None
            yield pb.UpdateResponse(instance=name, state=State.running if running else State.timeout)
            if not running:
                self.instances.pop(name, None)

    def Increase(self, request, context):
        n = min(request.n, self.max_size - len(self.instances))
        for _ in range(n):
            self.create("i-" + secrets.token_hex(6))
        return pb.IncreaseResponse(succeeded=n)

    def create(self, name):
        home = self.root / name
        home.mkdir()
        for key in ("host", "login"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / key], check=True)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        options = {"ListenAddress": "127.0.0.1", "AuthorizedKeysFile": home / "login.pub", "StrictModes": "no",
                   "PidFile": "none", "PasswordAuthentication": "no", "MaxSessions": 100}
        command = ["/usr/sbin/sshd", "-D", "-f", "/dev/null", "-p", str(port), "-h", home / "host", "-E", home / "log"]
        process = subprocess.Popen(command + [f"-o{key}={value}" for key, value in options.items()])
        self.instances[name] = (port, process)

    def Decrease(self, request, context):
        for name in request.instances:
            if name in self.instances:
                self.instances.pop(name)[1].terminate()
                shutil.rmtree(self.root / name, ignore_errors=True)
        return pb.DecreaseResponse(succeeded=request.instances)

    def ConnectInfo(self, request, context):
        if request.instance not in self.instances:
            context.abort(grpc.StatusCode.UNKNOWN, f"instance {request.instance} does not exist")
        response = pb.ConnectInfoResponse(connector=self.connector)
        response.connector.username = self.connector.username or os.environ.get("USER", "root")
        response.connector.key = self.connector.key or (self.root / request.instance / "login").read_bytes()
        response.InternalAddr = response.ExternalAddr = f"127.0.0.1:{self.instances[request.instance][0]}"
        return response

    def Heartbeat(self, request, context):
        if request.instance not in self.instances:
            context.abort(grpc.StatusCode.UNKNOWN, f"instance {request.instance} does not exist")
        return pb.Empty()


def main():
    if os.environ.get("FLEETING_INSTANCE_GROUP_PLUGIN") != "4c6410b1-cb78-4962-8c76-ab936d0ea908":
        sys.exit("This is a plugin of an instance group: a runner's manager starts it.")
    group, stop = Group(), threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    rpc.add_InstanceGroupServicer_to_server(group, server)
    empty = dict(request_deserializer=lambda _: b"", response_serializer=lambda _: b"")
    shutdown = grpc.unary_unary_rpc_method_handler(lambda *_: stop.set(), **empty)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("plugin.GRPCController", {"Shutdown": shutdown}),))
    path = os.path.join(os.environ.get("PLUGIN_UNIX_SOCKET_DIR", tempfile.gettempdir()), f"plugin{secrets.randbits(32)}")
    server.add_insecure_port("unix:" + path)
    server.start()
    print(f"1|0|unix|{path}|grpc|", flush=True)
    stop.wait()
    for name in list(getattr(group, "instances", {})):
        group.instances.pop(name)[1].terminate()
    server.stop(0.1).wait()


main()
