//! Real PostgreSQL servers in temporary directories, as an unprivileged user.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::within;

/// The directory in which Debian installs it.
const PROGRAMS: &str = "/usr/lib/postgresql";

const PORT: u16 = 5432;

/// A server whose data is removed with it.
pub struct PostgresServer {
    directory: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

/// The directory of the programs; `None`, with a message, if no server is installed.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(PROGRAMS).into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists());
    if found.is_none() {
        eprintln!("skipped: no PostgreSQL server is installed in {PROGRAMS}");
    }
    found
}

/// A command of the server, as the user `postgres` if this is root, which the server refuses.
fn command(program: &str) -> Option<Command> {
    let program = programs()?.join(program);
    if !rustix::process::geteuid().is_root() {
        return Some(Command::new(program));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    Some(command)
}

fn run(mut command: Command) {
    let done = command.current_dir("/").output().expect("the program starts");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Gives a file or directory to the user that servers run as.
fn give_away(path: &Path) {
    if rustix::process::geteuid().is_root() {
        let mut command = Command::new("chown");
        command.arg("postgres").arg(path);
        run(command);
    }
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    give_away(directory.path());
    directory
}

impl PostgresServer {
    /// Whether servers can be started; if not, prints that.
    pub fn is_installed() -> bool {
        programs().is_some()
    }

    /// An empty database; `None` if no server is installed.
    pub fn start() -> Option<PostgresServer> {
        let mut server = PostgresServer::new(PORT)?;
        server.launch(&[]);
        Some(server)
    }

    fn new(port: u16) -> Option<PostgresServer> {
        let directory = directory();
        let mut init = command("initdb")?;
        init.args(["--no-sync", "-A", "trust", "-U", "epitome", "-D"]).arg(directory.path().join("data"));
        run(init);
        Some(PostgresServer { directory, port, child: None })
    }

    /// An empty database that is also at this port of loopback. It knows TLS, with a certificate for `localhost` that
    /// [`authority`](Self::authority) has signed. `kind`: which connections over TCP it admits, in the words of
    /// `pg_hba.conf`.
    pub fn with_tls(port: u16, kind: &str) -> Option<PostgresServer> {
        let mut server = PostgresServer::new(port)?;
        let path = server.path().to_path_buf();
        let openssl = |arguments: &str| {
            let mut command = Command::new("openssl");
            command.args(arguments.split(' ')).current_dir(&path);
            let done = command.output().expect("openssl is installed");
            assert!(done.status.success(), "{arguments}: {}", String::from_utf8_lossy(&done.stderr));
        };
        std::fs::write(path.join("names"), "subjectAltName=DNS:localhost\n").expect("a file");
        openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt");
        openssl("req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr");
        openssl(
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt",
        );
        give_away(&path.join("server.key"));
        let rules = format!("local all all trust\n{kind} all all 127.0.0.1/32 trust\n");
        std::fs::write(path.join("data/pg_hba.conf"), rules).expect("a file");
        let file = |name: &str| path.join(name).display().to_string();
        server.launch(&[
            "listen_addresses=127.0.0.1",
            &format!("port={port}"),
            "ssl=on",
            &format!("ssl_cert_file={}", file("server.crt")),
            &format!("ssl_key_file={}", file("server.key")),
        ]);
        Some(server)
    }

    /// The certificate of the authority that has signed the server's.
    pub fn authority(&self) -> PathBuf {
        self.path().join("ca.crt")
    }

    /// A standby of this server, which waits for it with each commit from now on.
    pub fn standby(&mut self) -> PostgresServer {
        let directory = directory();
        let mut copy = command("pg_basebackup").expect("it was found before");
        copy.args(["-R", "-X", "stream", "-c", "fast", "-U", "epitome", "-h"]).arg(self.path());
        copy.arg("-D").arg(directory.path().join("data"));
        run(copy);
        let mut standby = PostgresServer { directory, port: PORT, child: None };
        // The new settings are read when the standby is there, so that nothing waits for it in vain.
        standby.launch(&[]);
        self.sql("alter system set synchronous_standby_names = '*'");
        self.sql("select pg_reload_conf()");
        let synchronous = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        within("replication", || (self.sql(synchronous).trim() == "1").then_some(()));
        standby
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The Unix socket that it listens at.
    pub fn socket(&self) -> PathBuf {
        self.path().join(format!(".s.PGSQL.{}", self.port))
    }

    fn launch(&mut self, settings: &[&str]) {
        let mut postgres = command("postgres").expect("it was found before");
        postgres.arg("-D").arg(self.path().join("data")).arg("-k").arg(self.path());
        for setting in ["listen_addresses=", "max_wal_senders=4"].iter().chain(settings) {
            postgres.args(["-c", setting]);
        }
        let log = std::fs::File::create(self.path().join("log")).expect("a file");
        let child = postgres.current_dir("/").stderr(log).stdout(Stdio::null()).spawn().expect("it starts");
        let child = self.child.insert(child);
        let path = self.directory.path();
        let mut ready = command("pg_isready").expect("it was found before");
        ready.args(["-q", "-U", "epitome", "-d", "postgres", "-p", &self.port.to_string(), "-h"]).arg(path);
        within("the server's start", || {
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                let log = std::fs::read_to_string(path.join("log")).unwrap_or_default();
                panic!("the server has ended with {status}: {log}");
            }
            ready.status().expect("the program starts").success().then_some(())
        });
    }

    /// Kills the server with its children, like a power failure.
    pub fn kill(&mut self) {
        let pid = std::fs::read_to_string(self.path().join("data/postmaster.pid")).expect("it runs");
        let pid: i32 = pid.lines().next().and_then(|pid| pid.parse().ok()).expect("a process id");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
        if let Some(mut child) = self.child.take() {
            child.wait().expect("it was killed");
        }
    }

    /// Makes a standby the primary; returns once it accepts writes.
    pub fn promote(&self) {
        self.sql("select pg_promote()");
    }

    pub fn sql(&self, sql: &str) -> String {
        let mut psql = command("psql").expect("it was found before");
        psql.args(["-XAtq", "-U", "epitome", "-d", "postgres", "-p", &self.port.to_string()]);
        psql.args(["-c", sql, "-h"]).arg(self.path());
        let done = psql.current_dir("/").output().expect("the program starts");
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// The address of whichever of the servers accepts writes, as a user configures it.
    pub fn address(servers: &[&PostgresServer]) -> String {
        let hosts: Vec<String> =
            servers.iter().map(|server| server.path().display().to_string().replace('/', "%2F")).collect();
        format!("postgres://epitome@{}/postgres?target_session_attrs=read-write", hosts.join(","))
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}
