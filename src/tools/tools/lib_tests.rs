//! Real paths, and the example tool of `CONTRIBUTING.md`.

use std::fs::{create_dir_all, write};
use std::os::unix::fs::symlink;

use super::*;

#[test]
fn real_path_follows_links_with_missing_targets() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let root = home.path().canonicalize().expect("it is there");
    let at = |path: &str| root.join(path);
    create_dir_all(at("a/b")).expect("made");
    write(at("file"), "").expect("written");
    for (link, target) in [
        ("to-a", "a"),
        ("a/up", "../file"),
        ("dangling", "a/missing"),
        ("a/dangling", "../new/er"),
        ("far", "/nowhere/at/all"),
        ("first", "dangling"),
        ("through", "dangling/below"),
        ("round", "trip"),
        ("trip", "round"),
    ] {
        symlink(target, at(link)).expect("made");
    }
    for (path, real) in [
        ("a/b", "a/b"),
        ("to-a/b", "a/b"),
        ("to-a/up", "file"),
        ("to-a/b/../up", "file"),
        ("a/b/new", "a/b/new"),
        ("to-a/new/er", "a/new/er"),
        ("new/a/b", "new/a/b"),
        ("file/below", "file/below"),
        ("dangling", "a/missing"),
        ("dangling/below/it", "a/missing/below/it"),
        ("to-a/dangling", "new/er"),
        ("first/x", "a/missing/x"),
        ("through/x", "a/missing/below/x"),
        ("far", "/nowhere/at/all"),
        ("far/x", "/nowhere/at/all/x"),
        ("round/x", "round/x"),
        // A `..` after a missing component can't be resolved.
        ("new/../file", "new/../file"),
        ("dangling/../file", "dangling/../file"),
    ] {
        assert_eq!(real_path(&at(path)), at(real), "{path}");
    }
    let long = at(&"x/".repeat(PATH_BYTES_MAX / 2 - 200));
    assert_eq!(real_path(&long), long.components().collect::<PathBuf>());
    let too_long = at(&"x".repeat(PATH_BYTES_MAX));
    assert_eq!(real_path(&too_long), too_long);
    assert_eq!(real_path(Path::new("no/such/place")), Path::new("no/such/place"));
}

#[test]
fn real_path_is_fast_with_many_missing_components() {
    // Regression test: this took seconds, because each ancestor was looked up from the root, and a path with a few
    // thousand components blocked the session.
    let home = tempfile::tempdir().expect("a temporary directory");
    let root = home.path().canonicalize().expect("it is there");
    symlink("missing", root.join("link")).expect("made");
    let tail = "y/".repeat(1_500);
    let found = real_path(&root.join("link").join(&tail));
    assert_eq!(found, root.join("missing").join(&tail).components().collect::<PathBuf>());
}

#[tokio::test]
async fn the_worked_tool_runs_as_it_is_printed() {
    let printed: String = include_str!("line_count.rs").lines().map(|line| format!("   {line}\n")).collect();
    let printed = printed.replace("   \n", "\n");
    assert!(
        include_str!("../../../CONTRIBUTING.md").contains(&printed),
        "CONTRIBUTING.md prints line_count.rs"
    );
    let home = tempfile::tempdir().expect("a temporary directory");
    write(home.path().join("a.txt"), "one\ntwo\n").expect("written");
    let workspace = Arc::new(Workspace::new(
        home.path().canonicalize().expect("it is there"),
        Vec::new(),
        Arc::default(),
    ));
    let tools = Toolbox::new(vec![Arc::new(line_count::LineCounter)]);
    let tool = tools.get("line_count").expect("it was added");
    let input = serde_json::json!({"file_path": "a.txt"});
    assert!(matches!(tool.access(&input, &workspace), Ok(Access::Read(paths)) if paths.len() == 1));
    let result = tool.run(input, ToolContext::bare(workspace)).await;
    assert_eq!(result, ToolResult::completed("2 lines"));
}
