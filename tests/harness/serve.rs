//! `epitome serve`, and windows on other machines.

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::agent::Agent;
use super::user::User;

/// `epitome serve`, killed when dropped.
pub struct Server {
    child: Child,
    /// Host and port.
    pub address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn serve(user: &User, arguments: &[&str]) -> Server {
    let mut command = user.command(&[&["serve"][..], arguments].concat());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut errors = BufReader::new(child.stderr.take().expect("it is a pipe"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("it says where it listens");
    let address = line.trim().strip_prefix("listening on ").and_then(|at| at.strip_suffix("/acp"));
    let (_, address) = address.and_then(|at| at.split_once("://")).unwrap_or_else(|| panic!("{line:?}"));
    Server { address: address.to_owned(), child }
}

impl Server {
    pub fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.child.id().cast_signed()).expect("a process");
        kill_process(process, signal).expect("it runs");
    }

    /// The status of the answer at a path.
    pub fn status(&self, path: &str) -> u16 {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("it reads");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("it answers");
        line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line:?}"))
    }

    pub fn exit_code(mut self) -> Option<i32> {
        self.wait()
    }

    /// Waits for its end. Returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("it is a child").code()
    }

    pub fn kill(&mut self) {
        // It may have ended.
        drop(self.child.kill());
        self.wait();
    }
}

pub fn token(user: &User, name: &str, scope: &str) -> String {
    user.run(&["token", "create", "--name", name, "--scope", scope]).ok().trim().to_owned()
}

pub fn certificate(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/providers_network/certificates");
    folder.join(name)
}

/// The command that an editor on another machine starts, with this token.
pub fn remote_agent(laptop: &User, address: &str, token: &str, arguments: &[&str]) -> Command {
    let mut command = laptop.command(&[&["acp", "--remote", address][..], arguments].concat());
    command.env("EPITOME_REMOTE_TOKEN", token).stdin(Stdio::piped());
    command
}

/// An editor on another machine, with this token.
pub fn editor(laptop: &User, address: &str, token: &str, arguments: &[&str]) -> Agent {
    let mut agent = Agent::spawn(remote_agent(laptop, address, token, arguments));
    agent.call("initialize", json!({ "protocolVersion": 1 }));
    agent
}
