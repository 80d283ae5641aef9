//! A hook that runs as a single process.

use std::time::Duration;

use epitome::hooks::output::{ProcessExit, RawOutcome};
use epitome::hooks::process::{self, HookProgram, STDERR_BYTES_MAX, STDOUT_BYTES_MAX};

use super::scripts::{environment, group, is_gone, patiently, pipe, reported_group, script, spec};

/// A payload larger than a pipe's buffer.
fn large() -> Vec<u8> {
    vec![b'x'; 1_000_000]
}

#[tokio::test]
async fn exit_status_stdout_and_stderr_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let (small, large) = (b"{}\n".to_vec(), large());
    for (title, stdin, text, exit, stdout, stderr) in [
        ("it blocks", &small, r#"echo '{"blocked":true}'"#, ProcessExit::Code(0), r#"{"blocked":true}"#, ""),
        ("it prints nothing", &small, "cat >/dev/null", ProcessExit::Code(0), "", ""),
        ("it prints garbage", &small, "echo oops", ProcessExit::Code(0), "oops", ""),
        ("it fails", &small, "echo why >&2; exit 1", ProcessExit::Code(1), "", "why"),
        ("it ends itself", &small, "kill -9 $$", ProcessExit::Signal(9), "", ""),
        ("it reads nothing", &large, "echo '{}'", ProcessExit::Code(0), "{}", ""),
        ("it closes its stdin", &large, "exec <&-; echo '{}'", ProcessExit::Code(0), "{}", ""),
        ("it reads all", &large, "wc -c | tr -d ' '", ProcessExit::Code(0), "1000000", ""),
    ] {
        let path = script(folder.path(), "hook", &format!("#!/bin/sh\n{text}\n"));
        let ran = patiently(process::run(spec(folder.path(), path, stdin))).await.expect("it starts");
        let RawOutcome::Ended { exit: code, stdout: out, stdout_cut, stderr: err } = ran else {
            panic!("{title}")
        };
        let out = String::from_utf8(out).expect("text");
        assert_eq!((code, out.trim(), err.trim(), stdout_cut), (exit, stdout, stderr, false), "{title}");
    }
}

#[tokio::test]
async fn a_script_gets_only_the_given_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut spec = spec(folder.path(), script(folder.path(), "hook", "#!/bin/sh\nenv\npwd\n"), b"");
    spec.more = vec![("EPITOME_HOOK_NAME", "hook".into())];
    let RawOutcome::Ended { stdout, .. } = patiently(process::run(spec)).await.expect("it starts") else {
        panic!()
    };
    let text = String::from_utf8(stdout).expect("text");
    let mut names: Vec<&str> =
        text.lines().filter_map(|line| Some(line.split_once('=')?.0)).filter(|name| *name != "_").collect();
    names.sort_unstable();
    // bash, when run as sh, adds some variables.
    names.retain(|name| !["SHLVL", "OLDPWD"].contains(name));
    assert_eq!(names, ["EPITOME_HOOK_NAME", "PATH", "PWD"]);
    assert_eq!(text.lines().last(), folder.path().to_str());
}

#[tokio::test]
async fn at_its_time_limit_a_script_is_killed_with_its_descendants() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "#!/bin/sh\ntrap '' TERM\necho $$\nsleep 600 &\nwhile :; do sleep 1; done\n";
    let mut spec = spec(folder.path(), script(folder.path(), "hook", text), b"{}\n");
    // Long enough for a shell to print its process id on a busy machine.
    spec.limit = Duration::from_secs(2);
    let ran = patiently(process::run(spec)).await.expect("it starts");
    let RawOutcome::Ended { exit, stdout, .. } = ran else { panic!("{ran:?}") };
    assert_eq!(exit, ProcessExit::TimedOut(Duration::from_secs(2)));
    is_gone(group(&String::from_utf8(stdout).expect("text"))).await;
}

#[tokio::test]
async fn a_child_that_keeps_the_pipe_open_does_not_delay_the_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "#!/bin/sh\nsleep 600 &\necho $$\n";
    let spec = spec(folder.path(), script(folder.path(), "hook", text), b"{}\n");
    let ran = patiently(process::run(spec)).await.expect("it starts");
    let RawOutcome::Ended { exit, stdout, .. } = ran else { panic!("{ran:?}") };
    assert_eq!(exit, ProcessExit::Code(0));
    is_gone(group(&String::from_utf8(stdout).expect("text"))).await;
}

#[tokio::test]
async fn long_stdout_keeps_its_beginning_and_long_stderr_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let text =
        "#!/bin/sh\nhead -c 100000000 /dev/zero\nhead -c 1000000 /dev/zero | tr '\\0' x >&2\necho last >&2\n";
    let spec = spec(folder.path(), script(folder.path(), "hook", text), b"{}\n");
    let ran = patiently(process::run(spec)).await.expect("it starts");
    let RawOutcome::Ended { exit, stdout, stdout_cut, stderr } = ran else { panic!() };
    assert_eq!((exit, stdout.len(), stdout_cut), (ProcessExit::Code(0), STDOUT_BYTES_MAX, true));
    assert_eq!(stderr.len(), STDERR_BYTES_MAX);
    assert!(stderr.ends_with("last\n"));
}

#[tokio::test]
async fn dropping_a_run_kills_its_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = pipe(folder.path());
    let text = format!("#!/bin/sh\nsleep 600 &\necho $$ > '{}'\nwait\n", fifo.display());
    let spec = spec(folder.path(), script(folder.path(), "hook", &text), b"{}\n");
    let group = patiently(async {
        tokio::select! {
            ran = process::run(spec) => panic!("it ended: {ran:?}"),
            group = reported_group(&fifo) => group,
        }
    })
    .await;
    is_gone(group).await;
}

#[tokio::test]
async fn a_script_that_cannot_be_started_is_an_error_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    script(folder.path(), "plain", "#!/bin/sh\n");
    std::fs::set_permissions(path("plain"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("set");
    script(folder.path(), "lost", "#!/no/such/interpreter -x\n");
    // A hook that Git had checked out on Windows: the reason was that there is no /bin/sh.
    script(folder.path(), "windows", "#!/bin/sh\r\nexit 0\r\n");
    script(folder.path(), "open", "#!/bin/sh\n");
    let writer = std::fs::OpenOptions::new().append(true).open(path("open")).expect("opened");
    for (name, expected) in [
        ("plain", "is not executable"),
        ("lost", "cannot be started with /no/such/interpreter"),
        ("windows", "has the line endings of Windows"),
        ("open", "is open for writing"),
        ("missing", "cannot be found"),
        (".", "is not a file"),
    ] {
        let ran = patiently(process::run(spec(folder.path(), path(name), b""))).await;
        let error = ran.expect_err(name).to_string();
        assert!(error.contains(expected) && error.contains(folder.path().to_str().expect("text")), "{error}");
    }
    drop(writer);
    patiently(process::run(spec(folder.path(), path("open"), b""))).await.expect("it is closed now");
}

#[tokio::test]
async fn a_missing_directory_is_named_in_the_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut spec = spec(folder.path(), "/bin/sh".into(), b"");
    spec.program = HookProgram::Line("true".to_owned());
    spec.environment = environment();
    spec.cwd = folder.path().join("gone");
    let error = patiently(process::run(spec)).await.expect_err("there is no such directory").to_string();
    assert!(error.contains("gone no longer exists"), "{error}");
}
