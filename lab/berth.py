"""A running berth, and a client's commands to it; for suites and benches in Python."""

import json
import os
import pathlib
import signal
import subprocess

BERTH = os.environ["BERTH"]


class Node:
    """A node with an admin page on port 5780. Its one client may lease all of `resources`, which is configuration."""

    def __init__(self, folder, resources):
        self.folder = pathlib.Path(folder)
        self.environment = {**os.environ, "HOME": str(folder), "BERTH_KEY": f"{folder}/key", "RUST_LOG": "info"}
        if not (self.folder / "key").exists():
            self.run("key", "new")
        public = json.loads(self.run("key", "show", "--json"))["public_key"]
        self.config = self.folder / "berth.toml"
        self.config.write_text(
            f"""
            [runtime]
            housekeeping_cpus = [0]
            [node]
            state_dir = "{folder}/state"
            [control]
            udp = "127.0.0.1:5700"
            quic = "127.0.0.1:5701"
            enrolled = ["{public}"]
            [[control.policy]]
            presenter = "*"
            perms = ["read", "write", "alloc", "revoke"]
            [admin]
            listen = "127.0.0.1:5780"
            {resources}
            """
        )
        self.start()

    def start(self):
        self.log = open(self.folder / "log", "a")
        command = [BERTH, "run", "--config", str(self.config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.environment)
        ready = self.process.stdout.readline()
        if not ready.startswith("berth ready"):
            raise RuntimeError(f"berth did not start: {ready}\n{(self.folder / 'log').read_text()}")

    def stop(self, how=signal.SIGTERM):
        """Its exit code."""
        self.process.send_signal(how)
        return self.process.wait()

    def run(self, *arguments):
        """What a command prints."""
        done = subprocess.run([BERTH, *arguments], env=self.environment, capture_output=True)
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        return done.stdout

    def ask(self, *arguments):
        """An op of the control plane, in datagrams: without the handshake of QUIC."""
        return self.run(*arguments, "--udp", "--node", "127.0.0.1:5700")

    def json(self, *arguments):
        return json.loads(self.ask(*arguments, "--json"))

    def alloc(self, size, *more):
        """The id of a new lease."""
        return self.json("lease", "alloc", "--size", str(size), *more)["lease_id"]
