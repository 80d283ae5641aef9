//! Files in a directory that a command of the agent, or an archive, can replace by something that never ends.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use epitome::memory::MemoryFiles;
use epitome::paths::Paths;
use epitome::session::worktree;

/// Each puts something else in place of a file.
const REPLACEMENTS: [fn(&Path); 3] = [
    |path| rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).expect("made"),
    |path| symlink("/dev/zero", path).expect("made"),
    // A sparse file of a terabyte.
    |path| File::create(path).and_then(|file| file.set_len(1 << 40)).expect("made"),
];

/// A command in the sandbox made a pipe named `.git` in a directory without a repository. Every later prompt there waited
/// for somebody to write into it, and with `memory = true` the whole daemon did. A link to `/dev/zero` filled the memory.
/// The same was possible with the files that `.git` leads to.
#[test]
fn nothing_but_small_files_is_read_to_find_the_repository_of_a_worktree() {
    for replace in REPLACEMENTS {
        for name in ["work/.git", "app/.git/worktrees/w/gitdir", "app/.git/worktrees/w/HEAD"] {
            let folder = tempfile::tempdir().expect("a directory");
            let root = folder.path().canonicalize().expect("it exists");
            let write = |name: &str, text: String| fs::write(root.join(name), text).expect("written");
            fs::create_dir_all(root.join("app/.git/worktrees/w")).expect("made");
            fs::create_dir(root.join("work")).expect("made");
            write("work/.git", format!("gitdir: {}\n", root.join("app/.git/worktrees/w").display()));
            write("app/.git/worktrees/w/gitdir", format!("{}\n", root.join("work/.git").display()));
            write("app/.git/worktrees/w/HEAD", "ref: refs/heads/epitome/parser\n".to_owned());
            let found = || {
                let memory = MemoryFiles::of(&root.join("work"), &Paths::below(&root.join("home")));
                (memory.root, worktree::name_of(&root.join("work")))
            };
            assert_eq!(found(), (root.join("app"), Some("parser".to_owned())));
            fs::remove_file(root.join(name)).expect("it is there");
            replace(&root.join(name));
            let expected = match name {
                "work/.git" => (root.join("work"), None),
                "app/.git/worktrees/w/gitdir" => (root.join("work"), Some("parser".to_owned())),
                _ => (root.join("app"), None),
            };
            assert_eq!(found(), expected, "{name}");
        }
    }
}
