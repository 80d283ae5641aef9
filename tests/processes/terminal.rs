//! The program in a pseudo-terminal, as a user at the keyboard sees it.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Child;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use epitome_test_harness::user::User;
use epitome_test_harness::{call, text as say};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;

/// Maximum time without output before a test fails.
const SILENCE: Duration = Duration::from_secs(120);

/// A program that runs in a terminal.
pub struct InTerminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    shown: String,
    /// The screen of a full-screen program.
    cells: vt100::Parser,
}

impl InTerminal {
    pub fn start(user: &User, arguments: &[&str]) -> InTerminal {
        let master = OpenOptions::new().read(true).write(true).open("/dev/ptmx").expect("a terminal");
        let mut name = [0; 64];
        // SAFETY: the descriptor is open, and the buffer has the given length.
        let made = unsafe {
            libc::grantpt(master.as_raw_fd()) == 0
                && libc::unlockpt(master.as_raw_fd()) == 0
                && libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()) == 0
        };
        assert!(made, "a terminal can be opened");
        // SAFETY: `ptsname_r` has terminated the name with a zero byte.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().expect("it is text");
        let slave = OpenOptions::new().read(true).write(true).open(name).expect("the terminal is open");
        let end = || slave.try_clone().expect("a descriptor");
        let mut command = user.command(arguments);
        command.stdin(end()).stdout(end()).stderr(end());
        let begin_session =
            || match (unsafe { libc::setsid() }, unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }) {
                (-1, _) | (_, -1) => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            };
        // SAFETY: only system calls between fork and exec. They make this its terminal and not that of the tests.
        let child = unsafe { command.pre_exec(begin_session) }.spawn();
        let mut from = master.try_clone().expect("a descriptor");
        let (sender, screen) = sync_channel(1_000);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails once the last program has closed the terminal.
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        InTerminal {
            child: child.expect("the program starts"),
            keyboard: master,
            screen,
            shown: String::new(),
            cells: vt100::Parser::new(24, 80, 0),
        }
    }

    /// Changes the size of the terminal and notifies the program.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("a terminal has a size");
        self.cells.screen_mut().set_size(rows, columns);
    }

    /// The rows of the screen of a full-screen program.
    pub fn rows(&self) -> Vec<String> {
        let (_, columns) = self.cells.screen().size();
        self.cells.screen().rows(0, columns).map(|row| row.trim_end().to_owned()).collect()
    }

    /// Draws what arrives, until the screen is as wanted.
    #[track_caller]
    pub fn until_screen(&mut self, wanted: &str, is_it: impl Fn(&str) -> bool) -> String {
        loop {
            let screen = self.rows().join("\n");
            if is_it(&screen) {
                return screen;
            }
            match self.screen.recv_timeout(SILENCE) {
                Ok(bytes) => self.cells.process(&bytes),
                Err(error) => panic!("{wanted} was not shown ({error}):\n{screen}"),
            }
        }
    }

    /// Draws what has arrived until nothing has for this time.
    pub fn settle(&mut self, quiet: Duration) {
        while let Ok(bytes) = self.screen.recv_timeout(quiet) {
            self.cells.process(&bytes);
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it reads");
    }

    /// Waits until the screen shows this text, and takes the output up to its end.
    pub fn until(&mut self, wanted: &str) -> String {
        loop {
            if let Some(at) = self.shown.find(wanted) {
                let rest = self.shown.split_off(at + wanted.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            match self.screen.recv_timeout(SILENCE) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(error) => panic!("{wanted:?} was not shown ({error}): {:?}", self.shown),
            }
        }
    }

    pub fn types(&mut self, line: &str) {
        self.keyboard.write_all(format!("{line}\n").as_bytes()).expect("it reads");
    }

    /// Waits for the program's end; returns the exit code and the remaining output.
    pub fn ends(mut self) -> (Option<i32>, String) {
        while let Ok(bytes) = self.screen.recv_timeout(SILENCE) {
            self.shown += &String::from_utf8_lossy(&bytes);
        }
        (self.child.wait().expect("it ends").code(), self.shown)
    }
}

/// Regression: a user who ran `epitome acp` in a terminal saw nothing, and got a JSON error for each line they typed.
#[test]
fn acp_says_what_it_is_for() {
    let (code, shown) = InTerminal::start(&User::new(), &["acp"]).ends();
    assert_eq!(code, Some(2), "{shown}");
    for part in ["is for editors", "\"agent_servers\"", "epitome run"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// It printed nothing until it had read all sessions, which takes half a minute for some gigabytes.
#[test]
fn the_doctor_says_what_it_does() {
    let user = User::with_replies(vec![vec![say("hello")]]);
    user.run(&["run", "hi"]).ok();
    let (_, shown) = InTerminal::start(&user, &["doctor"]).ends();
    assert!(shown.contains("\x1b[2KChecking session 1 of 1 …\r\x1b[2K"), "{shown:?}");
    let piped = user.run(&["doctor"]);
    assert!(!piped.err.contains("Checking"), "{piped:?}");
}

#[test]
fn a_refusal_may_have_a_reason() {
    let edit = || vec![call("file_write", json!({ "file_path": "new.txt", "text": "x\n" }))];
    let user = User::with_replies(vec![edit(), edit(), vec![say("Then with make.")]]);
    let mut run = InTerminal::start(&user, &["run", "write it"]);
    run.until("[n]o, and say why");
    run.types("?");
    let explained = run.until("[n]o, and say why");
    assert!(explained.contains("n REASON") && explained.contains("allow this call"), "{explained}");
    run.types("n use make");
    run.until("refused by you");
    run.until("[n]o, and say why");
    // Enter means no.
    run.types("");
    let (code, shown) = run.ends();
    assert!(code == Some(0) && shown.contains("refused by you"), "{shown}");
    let sent = user.model().requests()[1].body.to_string();
    assert!(sent.contains("They say: use make"), "{sent}");
    assert!(!user.project().join("new.txt").exists());
}

#[test]
fn replies_are_rendered_unless_they_are_wanted_plain() {
    let reply = || vec![say("**Made** it with `make`.")];
    let user = User::with_replies(vec![reply(), reply()]);
    let (_, shown) = InTerminal::start(&user, &["run", "make it"]).ends();
    assert!(shown.contains("\x1b[1mMade\x1b[0m it with \x1b[36mmake\x1b[0m."), "{shown:?}");
    let (_, shown) = InTerminal::start(&user, &["run", "--plain", "make it"]).ends();
    assert!(shown.contains("**Made** it with `make`."), "{shown:?}");
}
