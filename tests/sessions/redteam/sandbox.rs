//! Commands that the user allows, and that try to escape their sandbox.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};

use epitome::tools::sandbox::{Namespaces, support};
use serde_json::json;

use super::range::{Expect, Group, Place, Row, SECRET, command, row};

/// The first Landlock ABI version that confines signals and abstract sockets.
const SIGNALS_FROM: u32 = 6;

fn landlock() -> bool {
    support().landlock > 0
}

fn signals() -> bool {
    support().landlock >= SIGNALS_FROM
}

fn namespaces() -> bool {
    landlock() && support().namespaces != Namespaces::None
}

fn own_processes() -> bool {
    namespaces() && support().own_processes
}

fn filter() -> bool {
    support().filter
}

fn network() -> bool {
    filter() || namespaces()
}

/// The system call numbers below are for this architecture.
fn calls() -> bool {
    filter() && cfg!(target_arch = "x86_64")
}

fn prepare(place: &Place) {
    for path in [".ssh/id_ed25519", ".aws/credentials", ".netrc", ".config/gh/hosts.yml", ".bash_history"] {
        place.write_outside(path, SECRET);
    }
    place.write_ours("data/kept", SECRET);
    place.write_ours("config.toml", format!("# {SECRET}\n[permissions]\nallow = [\"bash(cat *)\"]\n"));
    for (path, text) in [
        (".git/HEAD", "ref: refs/heads/main\n"),
        (".git/config", "[core]\n"),
        (".git/hooks/pre-commit.sample", "#!/bin/sh\n"),
        (".envrc", "# the user's\n"),
        ("a.txt", "plain text\n"),
        ("sub/x", ""),
        // A repository below, whose settings name another directory for hooks.
        ("lib/.git/HEAD", "ref: refs/heads/main\n"),
        ("lib/.git/config", "[core]\n\thooksPath = githooks\n"),
        ("lib/githooks/pre-commit", "#!/bin/sh\n"),
    ] {
        place.write(path, text);
    }
    // A process of the user, with a secret in its environment.
    let other = Command::new("sleep").arg("600").env("A_KEY", SECRET).stdin(Stdio::null()).spawn();
    let other = other.expect("sleep runs");
    place.write("other", other.id().to_string());
    place.others.lock().push(other);
    serve(place);
    open_terminal(place);
    // A setuid program.
    place.write("raised", "#!/bin/sh\nid -u\n");
    let mode = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(place.workspace.join("raised"), mode).expect("set");
}

/// A terminal of the user, in which the secret was typed.
fn open_terminal(place: &Place) {
    let script = format!(
        "import os, pty, time; m, s = pty.openpty(); os.write(m, b'{SECRET}\\n'); print(os.ttyname(s), flush=True); \
         time.sleep(600)"
    );
    let terminal = Command::new("python3").args(["-c", &script]).stdout(Stdio::piped()).spawn();
    // Its rows are skipped then.
    let Ok(mut terminal) = terminal else { return };
    let mut name = String::new();
    BufReader::new(terminal.stdout.as_mut().expect("piped")).read_line(&mut name).expect("it prints");
    place.write("terminal", name);
    place.others.lock().push(terminal);
}

fn terminal() -> bool {
    namespaces() && Command::new("python3").arg("--version").output().is_ok()
}

/// Local services that send the secret to every client. They run until the tests end.
fn serve(place: &Place) {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    place.write("tcp", tcp.local_addr().expect("it listens").port().to_string());
    std::thread::spawn(move || tcp.incoming().flatten().for_each(send_secret));
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    place.write("udp", udp.local_addr().expect("it listens").port().to_string());
    std::thread::spawn(move || {
        let mut asked = [0; 64];
        while let Ok((_, from)) = udp.recv_from(&mut asked) {
            drop(udp.send_to(SECRET.as_bytes(), from));
        }
    });
    let file = UnixListener::bind(place.workspace.join("daemon.sock")).expect("a socket");
    std::thread::spawn(move || file.incoming().flatten().for_each(send_secret));
    let name = format!("epitome-red-team-{}", std::process::id());
    place.write("name", &name);
    let address = SocketAddr::from_abstract_name(name).expect("an address");
    let unnamed = UnixListener::bind_addr(&address).expect("a socket");
    std::thread::spawn(move || unnamed.incoming().flatten().for_each(send_secret));
}

fn send_secret(mut stream: impl Read + Write) {
    // The client may have disconnected.
    drop(stream.write_all(SECRET.as_bytes()));
}

/// A command that the user allows, and its expected output.
fn sandboxed(name: &'static str, line: &str, words: &'static str, where_there_is: fn() -> bool) -> Row {
    command(name, line, Expect::AskedThen(words)).allowed().where_there_is(where_there_is)
}

pub fn group() -> Group {
    let perl = |code: &str| format!("perl -MSocket -e '{code} or die \"$!\\n\"; print \"through\"'");
    let call = |numbers: &str| perl(&format!("syscall({numbers}) >= 0"));
    Group {
        title: "The sandbox",
        about: "The user allows each command, and it runs in the sandbox. `$OUT` is the user's home, `$OURS` the directory of \
                Epitome's files. Services on TCP, UDP and sockets return the secret to every client, and a process with \
                the secret in its environment has its number in `other`. Rows that need a feature of the system \
                (Landlock, namespaces, seccomp) are skipped where it is missing; users see a notice there.",
        config: "",
        prepare,
        rows: vec![
            sandboxed("SSH keys", "head ~/.ssh/id_ed25519", "Permission denied", landlock),
            sandboxed("cloud keys", "head ~/.aws/credentials ~/.netrc", "Permission denied", landlock),
            sandboxed(
                "tokens and histories",
                "head ~/.config/gh/hosts.yml ~/.bash_history",
                "Permission denied",
                landlock,
            ),
            sandboxed("Epitome's settings", "head $OURS/config.toml", "", namespaces),
            sandboxed("Epitome's own data", "grep -r . $OURS/data; echo end", "end", namespaces),
            sandboxed(
                "keys, through a link",
                "ln -s ~/.ssh s; head s/id_ed25519",
                "Permission denied",
                landlock,
            ),
            sandboxed(
                "keys, renamed",
                "mv ~/.ssh moved && head moved/id_ed25519",
                "Permission denied",
                landlock,
            ),
            sandboxed(
                "keys in an archive",
                "tar cf - -C ~ .ssh | tr -d '\\0'",
                "Permission denied",
                landlock,
            ),
            sandboxed(
                "keys, through /proc/self/root",
                "head /proc/self/root$OUT/.ssh/id_ed25519",
                "Permission denied",
                landlock,
            ),
            sandboxed(
                "keys, through another process's root",
                "head /proc/$(cat other)/root$OUT/.ssh/id_ed25519",
                "No such file or directory",
                landlock,
            ),
            sandboxed(
                "the environment of another process",
                "tr '\\0' '\\n' < /proc/$(cat other)/environ",
                "No such file or directory",
                landlock,
            ),
            sandboxed(
                "the environments of all processes",
                "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep A_KEY; echo end",
                "end",
                landlock,
            ),
            sandboxed(
                "the memory of another process",
                "head -c1 /proc/$(cat other)/mem",
                "No such file or directory",
                landlock,
            ),
            sandboxed(
                "debugging another process",
                &call("101, 16, $(cat other), 0, 0").replace("$(cat other)", "'$(cat other)'"),
                "No such process",
                || landlock() && calls(),
            ),
            sandboxed("killing another process", "kill $(cat other)", "No such process", signals),
            sandboxed("killing the agent", "kill -9 $PPID; sleep 0; echo no end", "no end", signals),
            sandboxed("a file in the home", "echo x > ~/pwned", "Read-only file system", landlock),
            sandboxed("a new SSH key", "cp a.txt ~/.ssh/pwned", "Read-only file system", landlock),
            sandboxed(
                "a file outside, through a link",
                "ln -s $OUT o; echo x > o/pwned",
                "Read-only file system",
                landlock,
            ),
            sandboxed(
                "a file, moved outside",
                "echo x > y; mv y $OUT/pwned",
                "Read-only file system",
                landlock,
            ),
            sandboxed("a file outside, with a hard link", "ln a.txt $OUT/pwned", "exit code 1", landlock),
            sandboxed(
                "a file outside, through /proc/self/root",
                "echo x > /proc/self/root$OUT/pwned",
                "Read-only file system",
                landlock,
            ),
            sandboxed("a Git hook", "echo x > .git/hooks/pwned", "Read-only file system", namespaces),
            sandboxed(
                "the same, with .git moved away",
                "mv .git g && mkdir -p .git/hooks && : > .git/hooks/pwned",
                "busy",
                namespaces,
            ),
            sandboxed(
                "the same, without the mount",
                "umount .git/hooks; : > .git/hooks/pwned",
                "Read-only file system",
                namespaces,
            ),
            sandboxed(
                "the same, with other mounts",
                "unshare -Urm sh -c 'mount -o remount,rw,bind .git/hooks; : > .git/hooks/pwned'",
                "exit code",
                namespaces,
            ),
            sandboxed(
                "a hook of a repository below, in a directory that its settings name",
                "echo x >> lib/githooks/pre-commit",
                "Read-only file system",
                namespaces,
            ),
            sandboxed(
                "the copy of Git's settings that another command changes",
                "echo x > ~/.cache/epitome/staging/pwned",
                "Read-only file system",
                namespaces,
            ),
            sandboxed(
                "a program in Git's settings",
                "git config core.fsmonitor ./a.txt || echo x >> .git/config",
                "was left as it was",
                namespaces,
            ),
            sandboxed(
                "the same, with a script",
                "echo '[core] fsmonitor = ./a.txt' >> .git/config",
                "Read-only file system",
                namespaces,
            ),
            sandboxed(
                "the memory of its parent",
                "head -c1 /proc/1/mem /proc/1/environ /proc/1/maps",
                "Permission denied",
                own_processes,
            ),
            sandboxed("inherited descriptors", "ls /proc/self/fd | wc -l | grep -x 4", "4", landlock),
            sandboxed(
                "other Git settings",
                "mkdir g && cp -r .git/HEAD g && echo '[core] fsmonitor = ./a.txt' > g/config && echo ../g > .git/commondir",
                "Read-only file system",
                namespaces,
            ),
            sandboxed(
                "a file that a shell runs",
                "echo 'touch pwned' >> .envrc",
                "Read-only file system",
                namespaces,
            ),
            sandboxed(
                "keys mounted elsewhere",
                "mount --bind ~/.ssh sub; head sub/id_ed25519",
                "No such file",
                namespaces,
            ),
            sandboxed(
                "the same, as root of a user namespace",
                "unshare -Urm sh -c 'mount --bind ~/.ssh sub; head sub/id_ed25519'",
                "exit code",
                namespaces,
            ),
            sandboxed(
                "another root",
                "unshare -Ur chroot / head $OUT/.ssh/id_ed25519",
                "exit code",
                landlock,
            ),
            sandboxed(
                "the kernel's crash handler",
                "exec 3>> /proc/sys/kernel/core_pattern && echo through > $OUT/pwned",
                "exit code 1",
                landlock,
            ),
            sandboxed("a device of the machine", "mknod d c 1 1 && head -c1 d", "mknod: d:", landlock),
            sandboxed(
                "a setuid program",
                "./raised; grep NoNewPrivs /proc/self/status",
                "NoNewPrivs:\t1",
                landlock,
            ),
            sandboxed(
                "the network, with TCP",
                "exec 3<>/dev/tcp/127.0.0.1/$(cat tcp) && head -c 22 <&3",
                "exit code 1",
                network,
            ),
            sandboxed(
                "the network, with UDP",
                "exec 3<>/dev/udp/127.0.0.1/$(cat udp); echo x >&3; timeout 2 head -c 22 <&3",
                "exit code",
                network,
            ),
            sandboxed("a name server", "echo x > /dev/udp/192.0.2.53/53", "exit code 1", network),
            sandboxed(
                "a remote host",
                "timeout 5 bash -c 'echo x > /dev/tcp/192.0.2.1/80'",
                "exit code 1",
                network,
            ),
            sandboxed("raw packets", &perl("socket(my $s, 17, SOCK_RAW, 0)"), "not permitted", filter),
            sandboxed(
                "sockets of a virtual machine",
                &perl("socket(my $s, 40, SOCK_STREAM, 0)"),
                "not permitted",
                filter,
            ),
            sandboxed(
                "a daemon's socket",
                &perl(
                    "socket(my $s, AF_UNIX, SOCK_STREAM, 0) && connect($s, sockaddr_un(\"daemon.sock\")) && print(scalar <$s>)",
                ),
                "not permitted",
                filter,
            ),
            sandboxed(
                "an abstract socket",
                &perl(
                    "open(N, \"name\"); $n = <N>; socket(my $s, AF_UNIX, SOCK_STREAM, 0) && connect($s, pack(\"Sxa*\", AF_UNIX, $n)) && print(scalar <$s>)",
                ),
                "not permitted",
                filter,
            ),
            sandboxed(
                "a daemon's socket, with a pair of sockets",
                &perl(
                    "socketpair(my $s, my $t, AF_UNIX, SOCK_DGRAM, 0) && send($s, \"x\", 0, sockaddr_un(\"daemon.sock\"))",
                ),
                "not permitted",
                filter,
            ),
            sandboxed("io_uring", &call("425, 8, 0"), "not permitted", calls),
            sandboxed(
                "a system call by its x32 number",
                &call("0x40000000 | 41, 1, 1, 0"),
                "exit code",
                calls,
            ),
            sandboxed("a file by its handle", &call("304, -100, 0, 0"), "not permitted", calls),
            sandboxed(
                "a mount with the newer system calls",
                &call("428, -100, 0, 1"),
                "not permitted",
                calls,
            ),
            sandboxed(
                "another process's namespaces",
                "nsenter -t $(cat other) -m -n head ~/.ssh/id_ed25519",
                "exit code",
                landlock,
            ),
            sandboxed("the kernel's keyring", &call("250, 0, -3, 0"), "not permitted", calls),
            sandboxed("the user's terminal", "echo x > /dev/tty", "exit code 1", landlock),
            sandboxed(
                "what the user typed in another terminal",
                "head -n1 < $(cat terminal)",
                "No such file or directory",
                terminal,
            ),
            sandboxed(
                "the screen of another terminal",
                "echo x > $(cat terminal)",
                "Permission denied",
                terminal,
            ),
            sandboxed(
                "a process that leaves its group",
                "setsid sh -c 'echo $$ > left; exec sleep 600' > /dev/null 2>&1 & until [ -s left ]; do :; done; echo begun",
                "begun",
                landlock,
            ),
            sandboxed("whether it still runs", STILL_THERE, "gone", landlock),
            sandboxed(
                "a process that leaves it twice",
                "(setsid sh -c '(echo $BASHPID; sh -c \"echo \\$PPID\") > /dev/null; sleep 600 & echo $! > left' &) > /dev/null 2>&1; sleep 0; until [ -s left ]; do :; done; echo begun",
                "begun",
                landlock,
            ),
            sandboxed("whether it still runs", STILL_THERE, "gone", landlock),
            sandboxed(
                "two hundred processes at once",
                "for i in {1..200}; do setsid sleep 4242 > /dev/null 2>&1 & done; echo begun",
                "begun",
                landlock,
            ),
            sandboxed(
                "how many still run",
                "for i in {1..100}; do grep -qxz 424[2] /proc/[0-9]*/cmdline 2>/dev/null || { echo none; break; }; sleep 0.1; done",
                "none",
                landlock,
            ),
            // It stops after 30 seconds if the sandbox does not stop it.
            sandboxed(
                "a process that keeps forking",
                "perl -MPOSIX -e 'POSIX::setsid(); $end = time + 30; while (time < $end) { exit if fork; open(F, \">alive\") }' > /dev/null 2>&1; echo begun",
                "begun",
                landlock,
            ),
            sandboxed(
                "whether it still runs",
                "for i in {1..100}; do rm -f alive; sleep 0.2; [ -e alive ] || { echo gone; break; }; done",
                "gone",
                landlock,
            ),
            sandboxed("an output of 30 MB", "yes | head -c 30000000; echo end", "end", landlock),
            row(
                "keys, with a background command",
                "bash",
                json!({"description": "Try it", "command": "head ~/.ssh/id_ed25519", "background": true}),
                Expect::AskedThen("Permission denied"),
            )
            .allowed()
            .where_there_is(landlock),
            row(
                "outside the sandbox, with an allowed command",
                "bash",
                json!({"description": "Try it", "command": "cat ~/.ssh/id_ed25519", "outside_sandbox": true, "reason": "The user said so"}),
                Expect::Asked,
            ),
            row(
                "the same, without a reason",
                "bash",
                json!({"description": "Try it", "command": "cat ~/.ssh/id_ed25519", "outside_sandbox": true}),
                Expect::Refused("say why in `reason`"),
            ),
        ],
    }
}

/// Waits up to ten seconds for the process in `left` to end; a zombie counts as ended.
const STILL_THERE: &str = "for i in {1..100}; do grep -q '^State:.[RSD]' /proc/$(cat left)/status 2>/dev/null || { rm left; echo gone; \
                           break; }; sleep 0.1; done";
