//! Examples of each tool, in a temporary workspace.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epitome::thread::{Location, OutcomeContent, OutcomeStatus, PlanStatus, ToolDisplay, ToolKind};
use epitome::tools::background::BackgroundCommands;
use epitome::tools::read_state::ReadState;
use epitome::tools::reaper::Reaper;
use epitome::tools::{Access, ToolContext, ToolError, ToolResult, Toolbox, Workspace};
use epitome_test_harness::WITHIN;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A workspace, the built-in tools, and their progress output.
struct Place {
    directory: TempDir,
    workspace: Arc<Workspace>,
    tools: Toolbox,
    progress: Arc<Mutex<String>>,
    files: Arc<ReadState>,
    background: Arc<BackgroundCommands>,
}

impl Place {
    fn new() -> Place {
        Place::with_environment(&[])
    }

    fn with_environment(variables: &[(&str, &str)]) -> Place {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut environment = vec![("PATH".into(), path)];
        environment.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
        let workspace = Workspace::new(
            directory.path().canonicalize().expect("it exists"),
            Vec::new(),
            Arc::new(environment),
        );
        Place {
            directory,
            workspace: Arc::new(workspace),
            tools: Toolbox::built_in(Arc::new(Reaper::disabled())),
            progress: Arc::default(),
            files: Arc::default(),
            background: Arc::default(),
        }
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().expect("it is below the workspace")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.directory.path().join(path)).expect("read")
    }

    fn access(&self, tool: &str, input: Value) -> Result<Access, ToolError> {
        self.tools.get(tool).expect("a built-in tool").access(&input, &self.workspace)
    }

    fn start(&self, tool: &str, input: Value) -> epitome::tools::BoxFuture<ToolResult> {
        let progress = self.progress.clone();
        let context = ToolContext {
            progress: Arc::new(move |output| progress.lock().push_str(&output.text)),
            files: self.files.clone(),
            background: self.background.clone(),
            ..ToolContext::bare(self.workspace.clone())
        };
        self.tools.get(tool).expect("a built-in tool").run(input, context)
    }

    async fn run(&self, tool: &str, input: Value) -> ToolResult {
        tokio::time::timeout(WITHIN, self.start(tool, input)).await.expect("it ends in time")
    }

    /// Has the model read a file.
    async fn reads(&self, path: &str) {
        assert_completed(&self.run("file_read", json!({"file_path": path})).await);
    }

    async fn patch(&self, patch: &str) -> ToolResult {
        self.run("apply_patch", json!({"input": format!("*** Begin Patch\n{patch}\n*** End Patch")})).await
    }

    async fn bash(&self, command: &str) -> ToolResult {
        self.run("bash", json!({"description": "a test", "command": command})).await
    }
}

fn text(result: &ToolResult) -> &str {
    match &result.content[0] {
        OutcomeContent::Text { text } => text,
        OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => panic!("no text: {result:?}"),
    }
}

fn assert_completed(result: &ToolResult) {
    assert_eq!(result.status, OutcomeStatus::Completed, "{}", text(result));
}

fn assert_failed(result: &ToolResult, part: &str) {
    assert_eq!(result.status, OutcomeStatus::Failed, "{}", text(result));
    assert!(text(result).contains(part), "{part:?} is not in {:?}", text(result));
}

// Reading.

#[tokio::test]
async fn a_file_is_read_with_line_numbers() {
    let place = Place::new();
    place.write("a.txt", "one\ntwo\r\nthree");
    let result = place.run("file_read", json!({"file_path": "a.txt"})).await;
    assert_completed(&result);
    assert_eq!(text(&result), "     1\tone\n     2\ttwo\n     3\tthree");
    let path = place.workspace.cwd.join("a.txt");
    assert_eq!(result.locations, [Location { path, line: Some(1) }]);
}

#[tokio::test]
async fn a_partial_read_says_how_to_continue() {
    let place = Place::new();
    place.write("a.txt", (1..=10).map(|n| format!("line {n}\n")).collect::<String>());
    let input = json!({"file_path": "a.txt", "offset": "3", "line_limit": 2});
    let result = place.run("file_read", input).await;
    assert_eq!(text(&result), "     3\tline 3\n     4\tline 4\n[lines 5-10 remain: offset=5]");
    let beyond = place.run("file_read", json!({"file_path": "a.txt", "offset": 11})).await;
    assert_failed(&beyond, "only 10 lines");
}

#[tokio::test]
async fn a_large_file_is_read_up_to_a_limit() {
    let place = Place::new();
    place.write("a.txt", format!("{}\n", "x".repeat(999)).repeat(1_000));
    let result = place.run("file_read", json!({"file_path": "a.txt"})).await;
    assert!(text(&result).len() < 34_000);
    assert!(text(&result).ends_with("[lines 33-1000 remain: offset=33]"), "{}", &text(&result)[32_000..]);
    place.write("b.txt", "y".repeat(3_000_000));
    let result = place.run("file_read", json!({"file_path": "b.txt"})).await;
    assert!(text(&result).ends_with("… [2998000 bytes of this line left out]"));
}

#[tokio::test]
async fn a_non_text_file_is_refused_with_a_reason() {
    let place = Place::new();
    place.write("tool.bin", [0x7f, b'E', b'L', b'F', 0, 0]);
    place.write("src/main.rs", "fn main() {}\n");
    rustix::fs::mkfifoat(rustix::fs::CWD, place.directory.path().join("pipe"), 0o600.into()).expect("made");
    for (path, part) in [
        ("tool.bin", "binary"),
        ("src", "is a directory"),
        ("pipe", "named pipe"),
        ("/dev/zero", "a device"),
        ("src/Main.rs", "Did you mean src/main.rs?"),
        ("src/main.rs/x", "not a directory"),
    ] {
        assert_failed(&place.run("file_read", json!({"file_path": path})).await, part);
    }
}

#[tokio::test]
async fn an_empty_file_and_invalid_utf_8_are_mentioned() {
    let place = Place::new();
    place.write("empty", "");
    place.write("latin", b"caf\xe9\n");
    let empty = place.run("file_read", json!({"file_path": "empty"})).await;
    assert_eq!(text(&empty), "(empty is empty)");
    let latin = place.run("file_read", json!({"file_path": "latin"})).await;
    assert_eq!(text(&latin), "     1\tcaf\u{fffd}\n[some bytes are not UTF-8 and are shown as \u{fffd}]");
}

#[tokio::test]
async fn an_image_is_returned_as_an_image() {
    let place = Place::new();
    place.write("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03");
    for (tool, input) in
        [("file_read", json!({"file_path": "a.png"})), ("view_image", json!({"path": "a.png"}))]
    {
        let result = place.run(tool, input).await;
        assert_completed(&result);
        assert_eq!(text(&result), "a.png (image/png, 2×3 pixels, 24 bytes)");
        let data = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAAD".to_string();
        assert_eq!(result.content[1], OutcomeContent::Image { mime_type: "image/png".into(), data });
    }
    place.write("not.png", "plain text\n");
    assert_failed(&place.run("view_image", json!({"path": "not.png"})).await, "not an image");
}

#[tokio::test]
async fn a_pdf_is_returned_as_a_document_whatever_its_name() {
    let place = Place::new();
    place.write("report.dat", "%PDF-1.7\n");
    let result = place.run("file_read", json!({"file_path": "report.dat"})).await;
    assert_completed(&result);
    assert_eq!(text(&result), "report.dat (application/pdf, 9 bytes)");
    let document = OutcomeContent::Document {
        mime_type: "application/pdf".into(),
        data: "JVBERi0xLjcK".into(),
        name: Some("report.dat".into()),
    };
    assert_eq!(result.content[1], document);
    place.write("no.pdf", "plain text\n");
    let plain = place.run("file_read", json!({"file_path": "no.pdf"})).await;
    assert_eq!(text(&plain), "     1\tplain text");
}

#[tokio::test]
async fn an_oversized_image_is_refused_with_a_hint() {
    let place = Place::new();
    let mut bytes = b"\xff\xd8\xff".to_vec();
    bytes.resize(4_000_000, 0);
    place.write("a.jpg", bytes);
    let result = place.run("file_read", json!({"file_path": "a.jpg"})).await;
    assert_eq!(
        text(&result),
        "a.jpg is an image of 4.00 MB, and a model takes at most 3.75 MB: make a smaller copy of it. Use a \
         command for that."
    );
}

// Writing and editing.

#[tokio::test]
async fn a_new_file_is_created_with_its_directories() {
    let place = Place::new();
    let result = place.run("file_write", json!({"file_path": "a/b/c.txt", "text": "new\n"})).await;
    assert_eq!(text(&result), "Created a/b/c.txt (4 bytes).");
    assert_eq!(place.read("a/b/c.txt"), "new\n");
    let path = place.workspace.cwd.join("a/b/c.txt");
    assert_eq!(result.shown, [ToolDisplay::Diff { path, old: None, new: "new\n".into() }]);
}

#[tokio::test]
async fn an_existing_file_is_replaced_and_its_mode_kept() {
    let place = Place::new();
    place.write("run.sh", "old\n");
    let path = place.workspace.cwd.join("run.sh");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    place.reads("run.sh").await;
    let result = place.run("file_write", json!({"file_path": "run.sh", "text": "new\n"})).await;
    assert_eq!(text(&result), "Overwrote run.sh (4 bytes).");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o755);
    assert_eq!(result.shown, [ToolDisplay::Diff { path, old: Some("old\n".into()), new: "new\n".into() }]);
}

/// A file with CRLF and a byte order mark was replaced, and all its lines ended with LF: the diff of the user's
/// repository showed every line as changed.
#[tokio::test]
async fn a_replaced_file_keeps_its_line_ends_and_its_byte_order_mark() {
    let place = Place::new();
    place.write("notes.txt", "\u{feff}one\r\ntwo\r\n");
    place.reads("notes.txt").await;
    let result = place.run("file_write", json!({"file_path": "notes.txt", "text": "one\n2\n"})).await;
    assert_completed(&result);
    let written = "\u{feff}one\r\n2\r\n";
    assert_eq!(place.read("notes.txt"), written);
    assert!(
        matches!(&result.shown[..], [ToolDisplay::Diff { new, .. }] if new == written),
        "{:?}",
        result.shown
    );
    // The model knows this state.
    let edit = json!({"file_path": "notes.txt", "old_text": "2", "new_text": "2\n3"});
    assert_completed(&place.run("file_edit", edit).await);
    assert_eq!(place.read("notes.txt"), "\u{feff}one\r\n2\r\n3\r\n");
}

/// `file_read` shows bytes that are not UTF-8 as U+FFFD. A model that could not edit such a file wrote all of it as it was
/// shown, and every accented letter was lost.
#[tokio::test]
async fn bytes_that_are_not_shown_are_not_replaced() {
    let place = Place::new();
    place.write("latin", b"caf\xe9\n");
    place.reads("latin").await;
    let write = |text: &str| json!({"file_path": "latin", "text": text});
    assert_failed(&place.run("file_write", write("le caf\u{fffd}\n")).await, "they would be lost");
    assert_eq!(fs::read(place.directory.path().join("latin")).expect("there"), b"caf\xe9\n");
    assert_completed(&place.run("file_write", write("le café\n")).await);
    assert_eq!(place.read("latin"), "le café\n");
}

#[tokio::test]
async fn writing_through_a_symlink_writes_its_target() {
    let place = Place::new();
    place.write("real.txt", "old");
    symlink("real.txt", place.directory.path().join("link.txt")).expect("linked");
    place.reads("real.txt").await;
    assert_completed(&place.run("file_write", json!({"file_path": "link.txt", "text": "new"})).await);
    assert_eq!(place.read("real.txt"), "new");
    let link = place.directory.path().join("link.txt");
    assert!(fs::symlink_metadata(link).expect("there").is_symlink());
}

/// Regression: a link to a missing target outside of the workspace looked like a new file inside it, and writing to it
/// created the target.
#[tokio::test]
async fn a_symlink_out_of_the_workspace_is_resolved_for_access_checks() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let target = elsewhere.path().canonicalize().expect("it exists").join("new.txt");
    symlink(&target, place.directory.path().join("link.txt")).expect("linked");
    symlink("link.txt", place.directory.path().join("second.txt")).expect("linked");
    for link in ["link.txt", "second.txt"] {
        let access = place.access("file_write", json!({"file_path": link, "text": ""}));
        assert_eq!(access, Ok(Access::Write(vec![target.clone()])), "{link}");
    }
    assert!(!place.workspace.contains(&place.workspace.cwd.join("second.txt")));
    assert!(place.workspace.contains(&place.workspace.cwd.join("not/there/yet.txt")));
}

#[tokio::test]
async fn a_read_only_file_is_not_replaced() {
    let place = Place::new();
    place.write("a.txt", "old");
    let path = place.directory.path().join("a.txt");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("set");
    place.reads("a.txt").await;
    let result = place.run("file_write", json!({"file_path": "a.txt", "text": "new"})).await;
    assert_failed(&result, "read-only");
    assert_eq!(place.read("a.txt"), "old");
}

#[tokio::test]
async fn special_files_and_directories_are_not_written() {
    let place = Place::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.directory.path().join("pipe"), 0o600.into()).expect("made");
    for (path, part) in [("pipe", "named pipe"), ("/dev/null", "a device"), (".", "is a directory")] {
        assert_failed(&place.run("file_write", json!({"file_path": path, "text": "x"})).await, part);
        let edit = json!({"file_path": path, "old_text": "x", "new_text": "y"});
        assert_failed(&place.run("file_edit", edit).await, part);
    }
}

#[tokio::test]
async fn an_edit_shows_its_diff_and_its_line() {
    let place = Place::new();
    place.write("a.rs", "fn a() {}\nfn b() {}\n");
    let input = json!({"file_path": "a.rs", "old_text": "fn b()", "new_text": "fn c()"});
    let path = place.workspace.cwd.join("a.rs");
    let diff = ToolDisplay::Diff {
        path: path.clone(),
        old: Some("fn a() {}\nfn b() {}\n".into()),
        new: "fn a() {}\nfn c() {}\n".into(),
    };
    let tool = place.tools.get("file_edit").expect("a built-in tool");
    assert_eq!(
        tool.preview(&input, ToolContext::bare(place.workspace.clone())).await,
        std::slice::from_ref(&diff)
    );
    place.reads("a.rs").await;
    let result = place.run("file_edit", input).await;
    assert_eq!(text(&result), "Edited a.rs at line 2.");
    assert_eq!(place.read("a.rs"), "fn a() {}\nfn c() {}\n");
    assert_eq!(result.shown, [diff]);
    assert_eq!(result.locations, [Location { path, line: Some(2) }]);
}

#[tokio::test]
async fn an_edit_that_does_not_match_changes_nothing_and_says_why() {
    let place = Place::new();
    place.write("a.rs", "let x = 1;\nlet x = 1;\n");
    place.reads("a.rs").await;
    let edit = |old: &str| json!({"file_path": "a.rs", "old_text": old, "new_text": "y"});
    assert_failed(&place.run("file_edit", edit("let x = 1;")).await, "at lines 1, 2");
    assert_failed(&place.run("file_edit", edit("let x  = 1;")).await, "white space");
    let missing = json!({"file_path": "b.rs", "old_text": "x", "new_text": "y"});
    assert_failed(&place.run("file_edit", missing).await, "There is no file b.rs");
    assert_eq!(place.read("a.rs"), "let x = 1;\nlet x = 1;\n");
}

/// Regression: a model edited a file based on outdated contents, and the user's changes were lost.
#[tokio::test]
async fn a_file_is_only_changed_if_the_model_has_read_its_current_contents() {
    let place = Place::new();
    place.write("a.rs", "one\ntwo\nthree\n");
    let edit = json!({"file_path": "a.rs", "old_text": "two", "new_text": "2"});
    let write = json!({"file_path": "a.rs", "text": "new\n"});
    let patch = json!({"input": "*** Begin Patch\n*** Update File: a.rs\n-two\n+2\n*** End Patch"});
    let calls = [("file_edit", edit.clone()), ("file_write", write), ("apply_patch", patch)];
    for (tool, input) in &calls {
        assert_failed(&place.run(tool, input.clone()).await, "a.rs was not read in this session");
    }
    place.run("file_read", json!({"file_path": "a.rs", "offset": 2, "line_limit": 1})).await;
    place.write("a.rs", "one\ntwo\nTHREE\n");
    for (tool, input) in &calls {
        let result = place.run(tool, input.clone()).await;
        assert_failed(&result, "changed after you read it");
        assert_failed(&result, "Read it with file_read (file_path \"a.rs\")");
    }
    assert_eq!(place.read("a.rs"), "one\ntwo\nTHREE\n");
    place.reads("a.rs").await;
    assert_completed(&place.run("file_edit", edit).await);
    let again = json!({"file_path": "a.rs", "old_text": "one", "new_text": "1"});
    assert_completed(&place.run("file_edit", again.clone()).await);
    assert_completed(&place.bash("echo more >> a.rs").await);
    assert_failed(&place.run("file_edit", again).await, "changed after you read it");
    let check = place.tools.get("file_edit").expect("a built-in tool").check(
        &json!({"file_path": "a.rs", "old_text": "1", "new_text": "one"}),
        ToolContext { files: place.files.clone(), ..ToolContext::bare(place.workspace.clone()) },
    );
    assert!(check.await.is_err_and(|why| why.to_string().contains("changed")), "nobody is asked about it");
}

#[tokio::test]
async fn a_patch_changes_all_its_files() {
    let place = Place::new();
    place.write("src/a.rs", "fn a() {\n    1\n}\n\nfn b() {\n    1\n}\n");
    place.write("old.sh", "#!/bin/sh\nexit 0\n");
    place.write("gone.bin", [0, 1, 2]);
    let old = place.workspace.cwd.join("old.sh");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).expect("set");
    place.reads("src/a.rs").await;
    place.reads("old.sh").await;
    let patch = "*** Update File: src/a.rs\n@@ fn b() {\n-    1\n+    2\n*** Update File: old.sh\n*** Move to: bin/new.sh\n\
                 -exit 0\n+exit 1\n*** Add File: docs/new.md\n+# New\n*** Delete File: gone.bin";
    let result = place.patch(patch).await;
    assert_eq!(
        text(&result),
        "Edited src/a.rs at line 6.\nMoved old.sh to bin/new.sh and edited it at line 2.\nCreated docs/new.md.\n\
         Deleted gone.bin."
    );
    assert_eq!(place.read("src/a.rs"), "fn a() {\n    1\n}\n\nfn b() {\n    2\n}\n");
    assert_eq!(
        (place.read("bin/new.sh"), place.read("docs/new.md")),
        ("#!/bin/sh\nexit 1\n".into(), "# New\n".into())
    );
    let mode = fs::metadata(place.workspace.cwd.join("bin/new.sh")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    assert!(!old.exists() && !place.workspace.cwd.join("gone.bin").exists());
    let line = |path: &str, line| Location { path: place.workspace.cwd.join(path), line };
    let locations = [line("src/a.rs", Some(6)), line("bin/new.sh", Some(2)), line("docs/new.md", None)];
    assert_eq!(result.locations, locations);
    let moved = ToolDisplay::Diff {
        path: place.workspace.cwd.join("bin/new.sh"),
        old: Some("#!/bin/sh\nexit 0\n".into()),
        new: "#!/bin/sh\nexit 1\n".into(),
    };
    assert_eq!((result.shown.len(), &result.shown[2]), (5, &moved));
    let ToolDisplay::Text { text } = &result.shown[0] else { panic!("{:?}", result.shown) };
    assert!(text.starts_with("Moves /") && text.ends_with("/bin/new.sh."), "{text}");
    // The model knows the contents that it has written.
    assert_completed(
        &place.patch("*** Update File: bin/new.sh\n-exit 1\n+exit 2\n*** Delete File: docs/new.md").await,
    );
    let names = ["src/a.rs", "src/b.rs", "x.md"].map(|path| place.workspace.cwd.join(path));
    let input = json!({"input": "*** Begin Patch\n*** Update File: src/a.rs\n*** Move to: src/b.rs\n*** Add File: x.md\n*** End Patch"});
    assert_eq!(place.access("apply_patch", input), Ok(Access::Write(names.to_vec())));
}

#[tokio::test]
async fn a_partially_matching_patch_changes_nothing_and_reports_all_faults() {
    let place = Place::new();
    place.write("a.rs", "one\n");
    place.write("b.rs", "two\n");
    place.reads("a.rs").await;
    let patch = "*** Update File: a.rs\n-one\n+1\n*** Update File: b.rs\n-two\n+2\n*** Update File: c.rs\n-x\n+y\n\
                 *** Add File: b.rs\n+x\n*** Update File: a.rs\n-one\n+uno";
    let result = place.patch(patch).await;
    for part in [
        "Nothing was changed:",
        "b.rs was not read",
        "no file c.rs",
        "b.rs exists already",
        "a.rs: The hunk does not fit",
    ] {
        assert_failed(&result, part);
    }
    assert_eq!((place.read("a.rs"), place.read("b.rs")), ("one\n".into(), "two\n".into()));
}

#[tokio::test]
async fn a_patch_that_fails_while_writing_is_rolled_back() {
    let place = Place::new();
    place.write("a.rs", "one\n");
    place.write("locked.rs", "two\n");
    let locked = place.workspace.cwd.join("locked.rs");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o444)).expect("set");
    place.reads("a.rs").await;
    place.reads("locked.rs").await;
    let patch =
        "*** Update File: a.rs\n-one\n+1\n*** Add File: new/c.rs\n+x\n*** Update File: locked.rs\n-two\n+2";
    assert_failed(&place.patch(patch).await, "No file was changed: earlier writes were rolled back.");
    assert_eq!((place.read("a.rs"), place.read("locked.rs")), ("one\n".into(), "two\n".into()));
    assert!(!place.workspace.cwd.join("new/c.rs").exists());
    // The model knows the restored contents.
    assert_completed(&place.patch("*** Update File: a.rs\n-one\n+1").await);
}

#[tokio::test]
async fn a_local_page_is_fetched_only_if_allowed() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/docs", listener.local_addr().expect("it listens"));
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            *count.lock() += 1;
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.expect("a request");
            let moved = String::from_utf8_lossy(&request[..length]).starts_with("GET /moved");
            let answer = match moved {
                true => {
                    "HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example/x\r\nContent-Length: 0\r\n\r\n"
                        .to_owned()
                }
                false => {
                    let page = "<h1>Docs</h1><p><a href='/more'>More</a></p>";
                    format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}",
                        page.len()
                    )
                }
            };
            stream.write_all(answer.as_bytes()).await.expect("written");
        }
    });
    let place = Place::new();
    let tool = place.tools.get("web_fetch").expect("a built-in tool");
    let fetch = async |url: &str, fetches_private| {
        let context = ToolContext { fetches_private, ..ToolContext::bare(place.workspace.clone()) };
        tool.run(json!({"url": url}), context).await
    };
    assert_failed(&fetch(&url, false).await, "web_fetch.private_networks");
    assert_eq!(*asked.lock(), 0, "it was not even asked");
    let page = fetch(&url, true).await;
    assert_completed(&page);
    let more = url.replace("/docs", "/more");
    assert!(text(&page).contains(&format!("# Docs\n\n[More]({more})")), "{}", text(&page));
    let elsewhere = fetch(&url.replace("/docs", "/moved"), true).await;
    assert!(
        text(&elsewhere).contains("which was not contacted: https://elsewhere.example/x"),
        "{}",
        text(&elsewhere)
    );
    let access = place.access("web_fetch", json!({"url": "https://Docs.rs:443/serde#x"}));
    assert_eq!(access, Ok(Access::Fetch { url: "https://docs.rs/serde".into(), host: "docs.rs".into() }));
}

#[tokio::test]
async fn invalid_input_is_refused_before_a_permission_request() {
    let place = Place::new();
    for (tool, input, part) in [
        ("file_read", json!({}), "`file_path` is missing"),
        ("file_read", json!({"invalid_json": "{"}), "`file_path` is missing"),
        ("file_write", json!({"file_path": "a"}), "`text` is missing"),
        ("file_edit", json!({"file_path": "a", "old_text": "", "new_text": "x"}), "file_write"),
        ("grep_tool", json!({"pattern": "a("}), "fixed_strings"),
        ("glob_tool", json!({"pattern": "../*"}), "`path`"),
        ("bash", json!({"command": "  "}), "`command` is empty"),
        ("todo_write", json!({"todos": 3}), "must be a list"),
    ] {
        let sentence = place.access(tool, input.clone()).expect_err(tool).to_string();
        assert!(sentence.contains(part), "{sentence}");
        assert_failed(&place.run(tool, input).await, part);
    }
}

/// A call with `run_in_background` blocked for a minute: unknown parameters were ignored.
#[tokio::test]
async fn unknown_parameters_are_refused_with_the_known_ones() {
    let place = Place::new();
    let input = json!({"command": "touch made", "run_in_background": true});
    let result = place.run("bash", input).await;
    assert_failed(&result, "bash has no parameter `run_in_background`. It takes `description`, `command`, ");
    assert!(!place.directory.path().join("made").exists());
    assert_completed(&place.run("bash", json!({"command": "true", "reason": null, "wait": null})).await);
}

/// A prompt gave the model the URI of a file, and no tool could read it.
#[tokio::test]
async fn a_file_is_read_by_its_uri() {
    let place = Place::new();
    place.write("my file \u{e4}.txt", "words");
    let uri = format!("file://{}/my%20file%20%C3%A4.txt", place.workspace.cwd.display());
    let result = place.run("file_read", json!({"file_path": uri})).await;
    assert_completed(&result);
    assert!(text(&result).contains("words"));
}

#[tokio::test]
async fn every_tool_has_a_card_for_incomplete_input() {
    let place = Place::new();
    for spec in place.tools.specs() {
        let tool = place.tools.get(&spec.name).expect("it is listed");
        for input in [json!({}), json!(null), json!({"file_path": 1, "command": [], "pattern": {}})] {
            let card = tool.display(&input, &place.workspace);
            assert!(!card.title.is_empty(), "{}", spec.name);
        }
    }
    let bash = place.tools.get("bash").expect("a built-in tool");
    let card = bash.display(&json!({"command": "cargo test"}), &place.workspace);
    assert_eq!((card.title.as_str(), card.kind), ("cargo test", ToolKind::Execute));
}

// Searching.

#[tokio::test]
async fn files_are_found_newest_first_without_ignored_ones() {
    let place = Place::new();
    place.write(".gitignore", "target/\n");
    place.write("target/out.rs", "");
    place.write(".git/hook.rs", "");
    place.write("src/old.rs", "");
    place.write("src/new.rs", "");
    let old = fs::File::open(place.directory.path().join("src/old.rs")).expect("opened");
    old.set_modified(std::time::UNIX_EPOCH).expect("set");
    let result = place.run("glob_tool", json!({"pattern": "**/*.rs"})).await;
    assert_eq!(text(&result), "src/new.rs\nsrc/old.rs");
    let all = place.run("glob_tool", json!({"pattern": "*.rs", "ignore_gitignore": true})).await;
    assert!(text(&all).contains("target/out.rs") && !text(&all).contains(".git/"), "{}", text(&all));
    let absolute = format!("{}/src/n*.rs", place.workspace.cwd.display());
    assert_eq!(text(&place.run("glob_tool", json!({"pattern": absolute})).await), "src/new.rs");
    let none = place.run("glob_tool", json!({"pattern": "*.py", "path": "src"})).await;
    assert!(text(&none).starts_with("No file in src matches `*.py`."), "{}", text(&none));
}

#[tokio::test]
async fn long_file_lists_are_cut_and_counted() {
    let place = Place::new();
    for number in 0..250 {
        place.write(&format!("f{number:03}"), "");
    }
    let result = place.run("glob_tool", json!({"pattern": "f*"})).await;
    assert_eq!(text(&result).lines().count(), 201);
    assert!(text(&result).contains("the 200 newest of 250 files"), "{}", text(&result));
}

#[tokio::test]
async fn matching_lines_are_grouped_by_file_with_line_numbers() {
    let place = Place::new();
    place.write(".gitignore", "out/\n");
    place.write("a.rs", "one\nTwo\nthree\n");
    place.write("b.txt", "two\n");
    place.write("out/c.rs", "two\n");
    place.write("bin", b"two\0two\n");
    place.write(".env", "TWO=two\n");
    let result = place.run("grep_tool", json!({"pattern": "two", "ignore_case": "true"})).await;
    assert_eq!(
        text(&result),
        "a.rs\n2: Two\n\nb.txt\n1: two\n[1 files that are likely to hold secrets were not searched]"
    );
    let input = json!({"pattern": "Two", "include": "*.rs", "surround_lines": 1});
    let around = place.run("grep_tool", input).await;
    assert_eq!(text(&around), "a.rs\n1- one\n2: Two\n3- three");
    let none = place.run("grep_tool", json!({"pattern": "o.e(", "fixed_strings": true})).await;
    assert_completed(&none);
    assert!(text(&none).starts_with("No line in . matches `o.e(`.\n"), "{}", text(&none));
    let one = place.run("grep_tool", json!({"pattern": "two", "path": "b.txt"})).await;
    assert_eq!(text(&one), "b.txt\n1: two");
}

#[tokio::test]
async fn a_search_does_not_follow_symlinks_out_of_the_workspace() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    fs::write(elsewhere.path().join("secret.txt"), "needle\n").expect("written");
    symlink(elsewhere.path(), place.directory.path().join("out")).expect("linked");
    symlink(elsewhere.path().join("secret.txt"), place.directory.path().join("file.txt")).expect("linked");
    let found = place.run("grep_tool", json!({"pattern": "needle"})).await;
    assert!(text(&found).starts_with("No line"), "{}", text(&found));
    let found = place.run("glob_tool", json!({"pattern": "*.txt"})).await;
    assert!(text(&found).starts_with("No file"), "{}", text(&found));
    let real = elsewhere.path().canonicalize().expect("it exists");
    let access = place.access("grep_tool", json!({"pattern": "needle", "path": "out"}));
    assert_eq!(access, Ok(Access::Read(vec![real])));
}

#[tokio::test]
async fn many_or_long_lines_are_cut() {
    let place = Place::new();
    place.write("long.js", format!("{}\n", "x".repeat(100_000)).repeat(5));
    let result = place.run("grep_tool", json!({"pattern": "x", "max_results": 3})).await;
    assert!(text(&result).len() < 2_000);
    assert!(text(&result).contains("[the first 3 matching lines"), "{}", text(&result));
    assert!(text(&result).contains("bytes of this line left out"), "{}", text(&result));
}

/// A line of a minified file was cut before its match, so that a result had no text of what was searched.
#[tokio::test]
async fn a_long_line_is_cut_around_its_match() {
    let place = Place::new();
    place.write("min.js", format!("{}needle();{}\n", "ä".repeat(1_000), "y".repeat(5_000)));
    place.write("short.js", format!("needle {}\n", "y".repeat(500)));
    let result = place.run("grep_tool", json!({"pattern": "needle"})).await;
    let lines: Vec<&str> = text(&result).lines().collect();
    assert!(lines[1].starts_with("1: [1900 bytes of this line left out] …ää"), "{}", lines[1]);
    assert!(lines[1].contains("äneedle();y") && lines[1].len() < 600, "{}", lines[1]);
    assert!(lines[4].starts_with("1: needle yy"), "{}", lines[4]);
}

/// In a worktree and in a submodule `.git` is a file. It was listed, and its line was found.
#[tokio::test]
async fn the_git_file_of_a_worktree_is_not_searched() {
    let place = Place::new();
    place.write(".git", "gitdir: /repo/.git/worktrees/one\n");
    place.write("a.txt", "gitdir\n");
    assert_eq!(text(&place.run("glob_tool", json!({"pattern": "*"})).await), "a.txt");
    assert_eq!(text(&place.run("grep_tool", json!({"pattern": "gitdir"})).await), "a.txt\n1: gitdir");
}

/// Windows PowerShell writes UTF-16, which counted as binary although searches found its lines.
#[tokio::test]
async fn a_file_in_utf_16_is_read() {
    let place = Place::new();
    for (name, mark, bytes) in [
        ("le.log", [0xff, 0xfe], u16::to_le_bytes as fn(u16) -> [u8; 2]),
        ("be.log", [0xfe, 0xff], u16::to_be_bytes),
    ] {
        let units: Vec<u8> = "wörld\r\ntwo\r\n".encode_utf16().flat_map(bytes).collect();
        place.write(name, [&mark[..], &units].concat());
        let read = place.run("file_read", json!({"file_path": name})).await;
        let expected = "     1\twörld\n     2\ttwo\n[the file is UTF-16; only a command can change it]";
        assert_eq!(text(&read), expected, "{name}");
        let edit = json!({"file_path": name, "old_text": "two", "new_text": "2"});
        let refused = place.run("file_edit", edit).await;
        assert!(text(&refused).contains("is not UTF-8 text"), "{}", text(&refused));
    }
}

#[tokio::test]
async fn a_search_without_a_path_covers_the_workspace() {
    let place = Place::new();
    let here = Ok(Access::Read(vec![place.workspace.cwd.clone()]));
    assert_eq!(place.access("grep_tool", json!({"pattern": "x"})), here);
    assert_eq!(place.access("glob_tool", json!({"pattern": "*", "path": ""})), here);
    let etc = Ok(Access::Read(vec!["/etc".into()]));
    assert_eq!(place.access("glob_tool", json!({"pattern": "/etc/*.conf"})), etc);
}

// Commands.

#[tokio::test]
async fn a_command_returns_its_output_in_order_and_its_exit_code() {
    let place = Place::new();
    let result = place.bash("echo one; echo two >&2; echo three; exit 3").await;
    assert_eq!(result.status, OutcomeStatus::Failed);
    assert_eq!(text(&result), "one\ntwo\nthree\n[exit code 3]");
    let raw = json!({"stdout": "one\ntwo\nthree\n", "stderr": "", "exitCode": 3});
    assert_eq!(result.raw, Some(raw));
    assert_eq!(*place.progress.lock(), "one\ntwo\nthree\n");
}

#[tokio::test]
async fn a_command_line_reaches_the_shell_unchanged() {
    let place = Place::new();
    let result = place.bash(r#"printf '%s|' "a b" 'c"d' $((1+1)) "`echo é`"; echo '```'"#).await;
    assert_completed(&result);
    assert_eq!(text(&result), "a b|c\"d|2|é|```\n[exit code 0]");
    let shown = ToolDisplay::Text { text: "````\na b|c\"d|2|é|```\n````".into() };
    assert_eq!(result.shown, [shown]);
}

#[tokio::test]
async fn a_command_gets_the_sessions_directory_and_environment_and_no_input() {
    let place = Place::with_environment(&[("GREETING", "hello"), ("PAGER", "less")]);
    let result = place.bash("pwd; echo $GREETING $PAGER $GIT_TERMINAL_PROMPT; echo [$CARGO]; cat").await;
    let cwd = place.workspace.cwd.display();
    assert_eq!(text(&result), format!("{cwd}\nhello less 0\n[]\n[exit code 0]"));
}

#[tokio::test]
async fn a_command_inherits_no_descriptors_and_has_no_terminal() {
    let place = Place::new();
    let result = place.bash("for fd in /dev/fd/*; do [ -e $fd ] && echo $fd; done; : </dev/tty").await;
    assert!(text(&result).starts_with("/dev/fd/0\n/dev/fd/1\n/dev/fd/2\n"), "{}", text(&result));
    assert_eq!(text(&result).matches("/dev/fd/").count(), 3, "{}", text(&result));
    assert!(text(&result).contains("/dev/tty"), "{}", text(&result));
}

#[tokio::test]
async fn ten_megabytes_of_output_are_cut_in_the_middle() {
    let place = Place::new();
    let result = place.bash("echo first; yes 'a line of output' | head -c 10000000; echo last").await;
    assert_completed(&result);
    assert!(text(&result).len() < 40_000, "{}", text(&result).len());
    assert!(text(&result).starts_with("first\na line"), "{}", &text(&result)[..40]);
    assert!(text(&result).ends_with("last\n[exit code 0]"));
    assert!(text(&result).contains("left out here; to see it, run the command again"));
    // The number depends on how long the command runs.
    assert!(place.progress.lock().len() < 5_000_000);
}

#[tokio::test]
async fn a_command_that_exceeds_its_time_limit_is_killed() {
    let place = Place::new();
    let input = json!({"command": "echo begun; echo $$ > pid; trap '' TERM; yes > /dev/null", "timeout": 1});
    let result = place.run("bash", input).await;
    assert_failed(&result, "begun\n[the time limit of 1 seconds was reached");
    assert_eq!(result.raw.as_ref().map(|raw| &raw["timedOut"]), Some(&json!(true)));
    assert_group_ends(&place).await;
}

#[tokio::test]
async fn a_command_with_endless_output_is_killed_at_its_time_limit() {
    let place = Place::new();
    let result = place.run("bash", json!({"command": "yes", "timeout": 1})).await;
    assert_failed(&result, "time limit");
}

/// Regression: a command had exited, but a background child kept the pipe open, and the call waited for the child.
#[tokio::test]
async fn a_background_child_neither_delays_the_call_nor_survives_it() {
    let place = Place::new();
    let result = place.bash("echo $$ > pid; (trap '' TERM; while :; do sleep 1; done) & echo done").await;
    assert_completed(&result);
    assert_eq!(text(&result), "done\n[exit code 0]");
    assert_group_ends(&place).await;
}

#[tokio::test]
async fn dropping_the_call_ends_the_command() {
    let place = Place::new();
    let call =
        place.start("bash", json!({"command": "echo $$ > pid.new; mv pid.new pid; sleep 60 & sleep 60"}));
    let there = async {
        let started = Instant::now();
        while !place.directory.path().join("pid").exists() {
            assert!(started.elapsed() < WITHIN, "the command began");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        result = call => panic!("it ended by itself: {result:?}"),
        () = there => {}
    }
    assert_group_ends(&place).await;
}

#[tokio::test]
async fn a_missing_working_directory_is_named() {
    let place = Place::new();
    fs::remove_dir_all(place.directory.path()).expect("removed");
    assert_failed(&place.bash("true").await, "is gone");
}

/// The command has written its process id, which is also that of its group, to `pid`.
async fn assert_group_ends(place: &Place) {
    let number = place.read("pid").trim().parse().expect("a number");
    let group = rustix::process::Pid::from_raw(number).expect("not zero");
    let started = Instant::now();
    while rustix::process::test_kill_process_group(group).is_ok() {
        assert!(started.elapsed() < WITHIN, "the group {number} still runs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

// The plan.

#[tokio::test]
async fn a_plan_is_passed_to_the_session() {
    let place = Place::new();
    let input =
        json!({"todos": [{"content": "Look", "status": "done"}, {"content": "Fix", "status": "pending"}]});
    let result = place.run("todo_write", input).await;
    let plan = result.plan.as_ref().expect("a plan");
    assert_eq!(
        plan.iter().map(|step| step.status).collect::<Vec<_>>(),
        [PlanStatus::Completed, PlanStatus::Pending]
    );
    assert_eq!(text(&result), "The plan has 2 steps: 1 completed, 0 in progress, 1 pending.");
}

#[test]
fn the_tools_have_the_names_that_hooks_expect() {
    let tools = Toolbox::built_in(Arc::new(Reaper::disabled()));
    let names: Vec<String> = tools.specs().into_iter().map(|spec| spec.name).collect();
    assert_eq!(
        names,
        [
            "file_read",
            "file_write",
            "file_edit",
            "apply_patch",
            "view_image",
            "glob_tool",
            "grep_tool",
            "bash",
            "bash_output",
            "bash_kill",
            "web_fetch",
            "todo_write",
            "recall",
            "task"
        ]
    );
}

#[test]
fn paths_are_displayed_relative_and_tilde_is_expanded() {
    let place = Place::with_environment(&[("HOME", "/home/me")]);
    assert_eq!(place.workspace.display(&place.workspace.resolve("src/../a.rs")), "a.rs");
    assert_eq!(place.workspace.display(&place.workspace.resolve(".")), ".");
    assert_eq!(place.workspace.resolve("~/notes"), Path::new("/home/me/notes"));
}
