//! Detects from a command's output whether the sandbox is the likely cause of a failure. Pure. It may be wrong: the
//! result is a hint, and the model decides.

/// Words in messages of programs that can't reach a socket in the file system.
const OF_SOCKETS: [&str; 4] = ["af_unix", "unix socket", ".sock", " agent"];

/// How the model can request to run outside of the sandbox.
pub const HOW_TO_ASK: &str = "If that stopped it and the task needs it, call bash again with \
     `outside_sandbox: true` and a `reason`; the user is asked. Don't work around it.";

/// Messages of programs without network access.
const NO_NETWORK: [&str; 13] = [
    "could not resolve host",
    "couldn't resolve host",
    "temporary failure in name resolution",
    "name or service not known",
    "network is unreachable",
    "failed to lookup address",
    "eai_again",
    "enetunreach",
    "getaddrinfo",
    "no address associated with hostname",
    "dial tcp",
    "failed to establish a new connection",
    "unable to resolve host",
];

/// Messages of programs that are denied access to a file, a socket or a process.
const NOT_ALLOWED: [&str; 8] = [
    "permission denied",
    "operation not permitted",
    "read-only file system",
    // Git, of a remote in a directory.
    "unable to create temporary object directory",
    "device or resource busy",
    "eacces",
    "eperm",
    "erofs",
];

/// A message of Git that can't sign: the key is in an agent.
const UNSIGNED: [&str; 1] = ["failed to write commit object"];

/// A message of Git that can't create a worktree elsewhere.
const LEADING: [&str; 1] = ["could not create leading directories"];

/// Messages of programs that can't create more processes. A shell prints one of them and retries.
const NO_PROCESSES: [&str; 2] = ["fork: resource temporarily unavailable", "fork: retry"];

/// Messages of programs that rename or link a file to another mount.
const ACROSS_MOUNTS: [&str; 2] = ["cross-device link", "exdev"];

/// Number of bytes searched at the end of an output, where programs report why they failed.
const LOOKED_AT_BYTES: usize = 8 * 1024;

/// Returns the text to append to the output of a sandboxed command for the model; `well`: whether the command
/// succeeded, `network`: whether it had network access.
pub fn hint(output: &str, well: bool, network: bool) -> Option<String> {
    let end = &output[output.ceil_char_boundary(output.len().saturating_sub(LOOKED_AT_BYTES))..];
    let end = end.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|words| end.contains(words));
    // It continues a sentence about the sandbox.
    let text = if says(&NO_PROCESSES) {
        ", which limits how many processes a command may have. Run fewer at a time.".to_owned()
    } else if !well
        && end.contains(".git")
        && !says(&LEADING)
        && says(&["read-only file system", "device or resource busy"])
    {
        " in which .git is read-only unless the line calls git to change it or `changes_git` is set. Set it if the \
         command is meant to change the repository. Even then, hooks and settings that name programs can't be changed: \
         that needs `outside_sandbox: true` and a `reason`, and the user is asked."
            .to_owned()
    } else if !well && says(&ACROSS_MOUNTS) {
        ", in which the workspace, each directory with a repository and those above them are mounts. Between them, \
         files can't be renamed or linked; copy them instead."
            .to_owned()
    } else if !network && says(&NO_NETWORK) {
        format!(", which has no network except its own loopback. {HOW_TO_ASK}")
    } else if !well && (says(&UNSIGNED) || says(&NOT_ALLOWED) && says(&OF_SOCKETS)) {
        format!(
            ", which has no Unix sockets: those of agents for keys and of daemons lead out of it. Python's multiprocessing \
             works with the start methods `spawn` and `fork`. {HOW_TO_ASK}"
        )
    } else if !well && says(&NOT_ALLOWED) {
        format!(
            ", which can change files only in the workspace, the temporary directory and build caches (in the \
             workspace not .git, editor settings and similar; of a home only its visible directories), and can't read \
             secrets or reach processes of other programs. {HOW_TO_ASK} The user can open a directory beside the workspace \
             for all commands with `write` in the table [sandbox] of config.toml."
        )
    } else {
        return None;
    };
    Some(format!("[this ran in a sandbox{text}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_denials_are_recognised_in_output() {
        let (none, files, net) = (None, Some("can change files"), Some("no network"));
        let (processes, git) = (Some("limits how many processes"), Some("changes_git"));
        let (mounts, sockets) = (Some("copy them instead"), Some("no Unix sockets"));
        for (output, well, network, expected) in [
            ("curl: (6) Could not resolve host: crates.io\n", false, false, net),
            // `curl … | head` exits with success.
            ("curl: (6) Could not resolve host: crates.io\n", true, false, net),
            ("curl: (6) Could not resolve host: crates.io\n", false, true, none),
            ("touch: cannot touch '/etc/x': Permission denied\n", false, false, files),
            (
                "socket.socket(socket.AF_UNIX)\nPermissionError: [Errno 1] Operation not permitted",
                false,
                false,
                sockets,
            ),
            ("gpg: can't connect to the agent: Operation not permitted", false, false, sockets),
            ("error: could not lock config file .git/config: Read-only file system", false, true, git),
            ("touch: cannot touch '/etc/x': Read-only file system", false, true, files),
            // The model was told to set `changes_git`, which was set.
            (
                "fatal: could not create leading directories of '../x/.git': Read-only file system",
                false,
                true,
                files,
            ),
            (
                "error: gpg failed to sign the data\nfatal: failed to write commit object",
                false,
                true,
                sockets,
            ),
            ("fatal: renaming 'a' failed: Invalid cross-device link", false, false, mounts),
            ("Error: EXDEV: cross-device link not permitted, rename 'a' -> 'lib/a'", false, false, mounts),
            ("test permission_denied ... ok: Permission denied", true, false, none),
            ("bash: fork: retry: Resource temporarily unavailable\n", false, false, processes),
            ("read: Resource temporarily unavailable\n", false, false, none),
            ("assertion failed", false, false, none),
        ] {
            let hint = hint(output, well, network);
            assert_eq!(hint.is_some(), expected.is_some(), "{output}");
            if let Some(expected) = expected {
                assert!(hint.expect("just looked").contains(expected), "{output}");
            }
        }
    }
}
