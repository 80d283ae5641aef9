//! Everyday programs work in the sandbox: users would switch off a sandbox that breaks their builds.

use epitome::thread::{Mode, OutcomeStatus};
use epitome::tools::Workspace;
use serde_json::json;

use super::{Place, has_landlock, has_program, text};

/// Programs, each with a command line that works in an empty directory without a network.
const WORK: [(&str, &str); 33] = [
    ("cc", "printf 'int main(void) { return 0; }' > m.c && cc -g m.c -o m && ./m"),
    ("make", "printf 'all:\\n\\t@echo made > out\\n' > Makefile && make -s -j4 && cat out"),
    ("cargo", "cargo new -q --vcs none one && cd one && cargo run -q --offline"),
    ("cargo", "cargo new -q --vcs none --lib two && cd two && cargo test -q --offline && cargo clean -q"),
    (
        "npm",
        "mkdir n && cd n && npm init -y > /dev/null && npm pkg set scripts.test='node -e 0' && npm test --silent",
    ),
    (
        "npm",
        "mkdir -p a b && (cd a && npm init -y) > /dev/null && cd b && npm init -y > /dev/null && npm i --silent ../a",
    ),
    ("npm", "mkdir p && cd p && npm init -y > /dev/null && npm pack --silent && test -e p-1.0.0.tgz"),
    ("npx", "npx --offline --yes -c 'echo ran'"),
    (
        "node",
        "node -e 'require(\"http\").createServer((q, s) => s.end()).listen(0, function () { fetch(`http://127.0.0.1:${this.address().port}`).then(() => process.exit()) })'",
    ),
    ("node", "node -e 'require(\"child_process\").execSync(\"true\")'"),
    ("python3", "python3 -m venv --without-pip v && v/bin/python -c 'import sqlite3, ssl'"),
    ("python3", "python3 -m pip --version"),
    ("python3", "python3 -m pip install -q --no-index --target t . 2>&1 | grep -q 'pyproject.toml'"),
    (
        "python3",
        "python3 -c 'import multiprocessing as m; print(m.get_context(\"fork\").Pool(2).map(abs, [-1]))'",
    ),
    (
        "python3",
        "python3 -c 'import threading, socket; s = socket.create_server((\"localhost\", 0)); threading.Thread(target=s.accept, daemon=True).start(); socket.create_connection(s.getsockname())'",
    ),
    ("python3", "python3 -c 'import tempfile, shutil; shutil.rmtree(tempfile.mkdtemp())'"),
    (
        "go",
        "mkdir g && cd g && go mod init x && printf 'package main\\nfunc main() {}\\n' > m.go && go run .",
    ),
    (
        "java",
        "printf 'class A { public static void main(String[] a) { System.out.println(1); } }' > A.java && java A.java",
    ),
    ("perl", "perl -e 'my $p = fork // die; exit 0 if !$p; waitpid $p, 0; print $?'"),
    ("gdb", "cp /bin/true t && gdb -batch -ex run ./t 2>&1 | grep -q 'exited normally'"),
    ("strace", "strace -f -o trace true && grep -q exit_group trace"),
    ("valgrind", "valgrind -q true"),
    ("sqlite3", "sqlite3 d 'create table t(a); insert into t values(1); select a from t'"),
    ("tar", "mkdir d && echo x > d/x && tar czf d.tgz d && rm -r d && tar xpf d.tgz && cat d/x"),
    ("script", "script -qec 'test -t 1' /dev/null"),
    ("ps", "ps -e | grep -q ps"),
    ("timeout", "! timeout 0.1 sleep 9; nohup true 2> /dev/null; setsid -w true; nice true"),
    (
        "sed",
        "echo a > s && sed -i s/a/b/ s && cp -a s t && install -m 755 s u && rsync --version > /dev/null; cat t u",
    ),
    ("mktemp", "f=$(mktemp) && d=$(mktemp -d) && mv $f $d && rm -r $d"),
    ("find", "mkdir -p a/b && touch a/b/c && find . -name c -exec rm {} + && ! test -e a/b/c"),
    ("xargs", "seq 20 | xargs -P4 -n1 echo | sort -n | tail -1 | grep -q 20"),
    ("diff", "diff <(echo a) <(echo a) && exec 3< <(echo x) && cat <&3"),
    ("bash", "sleep 5 & kill %1; wait; trap 'echo ended' EXIT; ulimit -c 0"),
];

/// Programs that only run outside of the sandbox, and report why.
const FAIL: [(&str, &str); 3] =
    [("sudo", "sudo -n true"), ("docker", "docker ps"), ("bwrap", "bwrap --ro-bind / / true")];

#[tokio::test]
async fn everyday_programs_work() {
    if !has_landlock() {
        return;
    }
    let mut place = Place::new();
    // The toolchain is in the home of the user who runs the tests, not in the home of this test.
    let toolchain = std::env::var_os("RUSTUP_HOME").or_else(|| {
        let home = std::path::PathBuf::from(std::env::var_os("HOME")?).join(".rustup");
        home.is_dir().then(|| home.into_os_string())
    });
    let mut environment = place.workspace.environment.to_vec();
    environment.extend(toolchain.map(|path| ("RUSTUP_HOME".into(), path)));
    place.workspace =
        Workspace::new(place.workspace.cwd.clone(), Vec::new(), std::sync::Arc::new(environment));
    let mut failed = Vec::new();
    for (works, rows) in [(true, &WORK[..]), (false, &FAIL[..])] {
        for (number, (program, line)) in rows.iter().enumerate() {
            if !has_program(program) {
                continue;
            }
            let line = format!("mkdir -p d{works}{number} && cd d{works}{number} && {{ {line}; }}");
            let outside = json!({
                "description": "a test", "command": line, "outside_sandbox": true, "reason": "it is a test"
            });
            let result = place.bash(&line).await;
            if (result.status == OutcomeStatus::Completed) == works {
                continue;
            }
            // Not a fault of the sandbox.
            if works && place.call(Mode::Ask, outside).await.status != OutcomeStatus::Completed {
                eprintln!("skipped: {program} fails outside of the sandbox as well: {line}");
                continue;
            }
            failed.push(format!("{line}\n{}", text(&result)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
