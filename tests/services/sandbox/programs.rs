//! Everyday programs work in the sandbox: users would switch off a sandbox that breaks their builds.

use epitome::thread::{Mode, OutcomeStatus};
use epitome::tools::Workspace;
use serde_json::json;

use super::{Place, has_landlock, has_program, text};

/// Programs, each with a command line that works in an empty directory without a network.
const WORK: [(&str, &str); 59] = [
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
    (
        "python3",
        "printf 'import multiprocessing as m\\nif __name__ == \"__main__\": print(m.get_context(\"spawn\").Pool(2).map(abs, [-1]))\\n' > s.py && python3 s.py",
    ),
    ("python3", "python3 -c 'import asyncio; asyncio.run(asyncio.create_subprocess_exec(\"true\"))'"),
    (
        "python3",
        "python3 -c 'import concurrent.futures as f; print(list(f.ThreadPoolExecutor().map(abs, [1])))'",
    ),
    (
        "python3",
        "python3 -c 'import sqlite3; c = sqlite3.connect(\"d\"); c.execute(\"pragma journal_mode=wal\"); c.execute(\"create table t(a)\")'",
    ),
    ("python3", "python3 - <<'PY'\nimport json, mmap, shutil\nprint(json.dumps({}))\nPY"),
    ("python3", "touch a.py && python3 -m compileall -q . && python3 -m json.tool <<< '{}'"),
    ("pytest", "printf 'def test(): assert 1\\n' > test_a.py && pytest -q"),
    (
        "node",
        "node -e 'new (require(\"worker_threads\").Worker)(\"1\", { eval: true })' && echo 'require(\"node:test\")(\"x\", () => {})' > x.test.js && node --test",
    ),
    ("rsync", "mkdir a && echo x > a/x && rsync -a a/ b/ && cat b/x"),
    ("ssh-keygen", "ssh-keygen -q -t ed25519 -N '' -f k && ssh-keygen -lf k.pub"),
    ("gdb", "gdb --version"),
    (
        "openssl",
        "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout k -out c 2> /dev/null && openssl x509 -in c -noout -subject",
    ),
    (
        "cmake",
        "printf 'cmake_minimum_required(VERSION 3.10)\\nproject(x NONE)\\n' > CMakeLists.txt && cmake -S . -B b",
    ),
    ("zip", "echo x > x && zip -q x.zip x && unzip -p x.zip"),
    ("gzip", "echo x | gzip | gunzip && echo x | xz | unxz"),
    ("jq", "echo '{\"a\": 1}' | jq .a"),
    ("awk", "seq 3 | awk '{ s += $1 } END { print s }' | tee s && cat s"),
    ("mkfifo", "mkfifo p && { echo x > p & } && cat p"),
    ("flock", "flock l -c true"),
    ("dd", "dd if=/dev/zero of=z bs=1M count=4 status=none && sha256sum z && truncate -s 0 z"),
    ("ln", "touch a && ln a b && ln -s a c && readlink -f c && [ $(stat -c %h a) = 2 ]"),
    ("chmod", "touch f && chmod 640 f && chown $(id -u) f && touch -d 2020-01-01 f"),
    (
        "bash",
        "echo x > /dev/shm/x && rm /dev/shm/x && echo x > ${TMPDIR:-/tmp}/of-a-test && rm ${TMPDIR:-/tmp}/of-a-test",
    ),
    ("bash", "coproc cat; echo x >&${COPROC[1]}; read -r line <&${COPROC[0]}; [ $line = x ]"),
    ("bash", "mapfile -t a < <(seq 3) && [ ${#a[@]} = 3 ] && cat <<EOF\n${a[*]}\nEOF"),
    ("bash", "nproc && id && uname -a && ls -la ~ && cat ~/.bashrc"),
];

/// Commands of Git in a repository, in this order.
const GIT: [&str; 26] = [
    "echo a > a && git add a && git commit -qm one",
    "git commit -q --allow-empty -m \"$(cat <<'EOF'\na\n\nb\nEOF\n)\"",
    "git switch -qc feature && echo b > b && git add b && git commit -qm b && git switch -q main",
    "git merge -q --no-ff -m merged feature",
    "git branch -m feature done && git branch -D done",
    "git switch -qc topic && echo c > c && git add c && git commit -qm c && git rebase -q main && git switch -q main && git cherry-pick topic",
    "echo x >> a && git stash -q && git stash pop -q && git restore a",
    "git bisect start HEAD HEAD~2 && git bisect run true && git bisect reset -q",
    "git tag v1 && git tag -a v2 -m two && git describe",
    "git worktree add -q tree -b tree && git -C tree status -s && git worktree remove tree",
    "git init -q --bare remote.git && git push -q ./remote.git main && git fetch -q ./remote.git main && git clone -q remote.git copy",
    "git -c protocol.file.allow=always submodule add -q \"$PWD/remote.git\" lib && git commit -qm lib && git submodule update --init -q",
    "git reset -q --hard HEAD~1 && git reflog | head -1 && git reset -q --hard ORIG_HEAD",
    "git rm -q c && git mv b d && git commit -qm moved",
    "git log --oneline -3 && git diff HEAD~1 --stat && git show HEAD:a && git blame a && git grep -q a HEAD",
    "git format-patch -q -1 -o p && git reset -q --hard HEAD~1 && git am -q p/*.patch",
    "git config user.name Me && [ $(git config --get user.name) = Me ]",
    "git remote add up https://up.example/x && git remote -v | grep -q up.example",
    "git gc -q && git fsck --no-progress",
    "git archive HEAD | tar t && git bundle create -q x.bundle main && git clone -q x.bundle y",
    "git commit -q --amend -m two && git revert --no-edit HEAD",
    "git notes add -m x && git notes show",
    "GIT_SEQUENCE_EDITOR=true git rebase -q -i HEAD~1",
    "echo z >> a && git diff > z.patch && git checkout -q a && git apply z.patch && git checkout -q a",
    "ssh-keygen -q -t ed25519 -N '' -f sign && git -c gpg.format=ssh -c user.signingkey=\"$PWD/sign\" commit -qS --allow-empty -m s",
    "git clean -qfd && git status --porcelain",
];

/// Lines that only work outside of the sandbox, each with the limit that `docs/sandbox.md` names.
const FAIL: [(&str, &str, &str); 9] = [
    ("sudo", "sudo -n true", "rights"),
    ("docker", "docker ps", "sockets"),
    ("bwrap", "bwrap --ro-bind / / true", "namespaces"),
    ("python3", "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'", "sockets"),
    (
        "python3",
        "printf 'import multiprocessing as m\\nif __name__ == \"__main__\": print(m.get_context(\"forkserver\").Pool(2).map(abs, [-1]))\\n' > f.py && python3 f.py",
        "sockets",
    ),
    ("ssh-add", "ssh-agent -a \"$PWD/agent\" true", "sockets"),
    ("git", "git worktree add -q ../beside", "elsewhere"),
    ("git", "git push -q ~/elsewhere.git main", "elsewhere"),
    ("git", "git clone -q . ~/copy", "elsewhere"),
];

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
    user_repository(&place);
    let mut rows: Vec<(bool, &str, String, &str)> = Vec::new();
    for (number, (program, line)) in WORK.iter().enumerate() {
        rows.push((true, *program, format!("mkdir -p d{number} && cd d{number} && {{ {line}\n}}"), ""));
    }
    rows.extend(FAIL.iter().map(|(program, line, limit)| (false, *program, (*line).to_owned(), *limit)));
    rows.extend(GIT.iter().map(|line| (true, "git", (*line).to_owned(), "")));
    let mut failed = Vec::new();
    for (works, program, line, limit) in rows {
        if !has_program(program) {
            continue;
        }
        if program == "git" {
            place.work_in(place.root.join("home/r"));
        }
        let result = place.bash(&line).await;
        let is_explained =
            !["sockets", "elsewhere"].contains(&limit) || text(&result).contains("this ran in a sandbox");
        if (result.status == OutcomeStatus::Completed) == works && is_explained {
            continue;
        }
        let outside = json!({ "description": "a test", "command": line, "outside_sandbox": true, "reason": "it is a test" });
        // Not a fault of the sandbox.
        if works && place.call(Mode::Ask, outside).await.status != OutcomeStatus::Completed {
            eprintln!("skipped: {program} fails outside of the sandbox as well: {line}");
            continue;
        }
        failed.push(format!("{line}\n{}", text(&result)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Makes a repository with a commit, and a bare one elsewhere, as the user does.
fn user_repository(place: &Place) {
    let home = place.root.join("home");
    std::fs::write(
        home.join(".gitconfig"),
        "[user]\n\tname = a\n\temail = a@b\n[init]\n\tdefaultBranch = main\n",
    )
    .expect("written");
    let line =
        "git init -q r && git init -q --bare elsewhere.git && git -C r commit -q --allow-empty -m zero";
    let mut shell = std::process::Command::new("sh");
    drop(shell.args(["-c", line]).current_dir(&home).env("HOME", &home).status());
}
