//! The page in a real browser, if one is installed: a functional test, and screenshots.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::server::Served;
use super::story;

/// Names of the executable in different distributions.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Milliseconds of the browser's virtual time until the page is captured. Virtual time stops during requests,
/// such as the event stream that the page follows.
const LOOK_AFTER: &str = "6000";

fn chromium() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
}

/// Runs a browser on an address.
fn look(browser: &Path, profile: &Path, link: &str, more: &[&str]) -> String {
    let mut command = Command::new(browser);
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        .args([
            "--hide-scrollbars",
            "--disable-extensions",
            "--disable-background-networking",
            "--no-proxy-server",
        ])
        .arg(format!("--virtual-time-budget={LOOK_AFTER}"))
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(more)
        .arg(link)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let output = command.output().expect("the browser starts");
    assert!(output.status.success(), "the browser ended with {}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a browser on a page whose daemon stops as soon as the page follows the session, which ends the event stream: by
/// then, everything has been rendered. A fixed delay of a few seconds was too short on a busy machine.
fn look_at(browser: &Path, profile: &Path, served: &Served, link: &str, more: &[&str]) -> String {
    let daemon = served.daemon.clone();
    let ends = served.runtime.spawn(async move {
        let mut followers = daemon.attachments.count();
        if followers.wait_for(|count| *count > 0).await.is_ok() {
            daemon.stop.send_replace(true);
        }
    });
    let page = look(browser, profile, link, more);
    ends.abort();
    page
}

#[test]
fn the_page_renders_a_session_in_a_browser() {
    let Some(browser) = chromium() else {
        eprintln!("skipped: there is no chromium on the PATH to look at the page with");
        return;
    };
    let home = story::played();
    let served = Served::of(&home.paths);
    let profile = tempfile::tempdir().expect("a scratch directory");
    let page = look_at(&browser, profile.path(), &served, &served.link(Some(&home.session)), &["--dump-dom"]);
    for part in [
        "Context over time",
        "The reader loses the last line",
        "class=\"band outcomes\"",
        "class=\"bar model\"",
        "Folders are not removed by agents here.",
        "cut on arrival",
        "compaction",
        "redone",
        "not allowed",
    ] {
        assert!(page.contains(part), "{part:?} is not on the page:\n{page}");
    }
    assert!(!page.contains("ticket="), "the ticket stays in the address");
}

/// Regenerates the pictures of `docs/see-and-undo.md`: `cargo test --test sessions pictures -- --ignored`, with the
/// target folder in `INSPECT_PICTURES`.
#[test]
#[ignore = "draws the documentation's pictures"]
fn pictures() {
    let browser = chromium().expect("a chromium on the PATH");
    let folder = PathBuf::from(std::env::var_os("INSPECT_PICTURES").expect("INSPECT_PICTURES says where to"));
    let home = story::played();
    let profile = tempfile::tempdir().expect("a scratch directory");
    for (name, size, entry, more) in [
        ("light", "1280,880", "", &[][..]),
        ("dark", "1200,780", "/e26", &["--blink-settings=preferredColorScheme=0"]),
        ("narrow", "500,1600", "", &[]),
    ] {
        let picture = format!("--screenshot={}", folder.join(format!("inspect-{name}.png")).display());
        let size = format!("--window-size={size}");
        let all: Vec<&str> =
            [picture.as_str(), size.as_str()].into_iter().chain(more.iter().copied()).collect();
        let served = Served::of(&home.paths);
        let link = format!("{}{entry}", served.link(Some(&home.session)));
        look_at(&browser, profile.path(), &served, &link, &all);
    }
}
