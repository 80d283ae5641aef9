//! Opening sessions whose directory does not answer, as a network file system does whose server is gone.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use epitome::session::port::SessionPort as _;
use epitome::session::{Opening, SessionEvent};
use epitome::thread::StopReason;
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::{Setup, TestSession};

/// Not in `libc`: the signal that asks for a lease.
const F_SETSIG: i32 = 10;

/// A file that can't be opened before this is dropped, or for 45 seconds.
struct Unanswered {
    _leased: File,
}

impl Unanswered {
    fn new(path: &Path) -> Unanswered {
        let leased = File::options().write(true).open(path).expect("a file");
        let descriptor = leased.as_raw_fd();
        // The kernel asks for the lease with a signal, whose default is to end the process; this one is ignored.
        // SAFETY: these calls only take numbers.
        let is_leased = unsafe {
            libc::fcntl(descriptor, F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        assert!(is_leased, "{}", std::io::Error::last_os_error());
        Unanswered { _leased: leased }
    }
}

/// Regression: the settings and the directory of a new session were read on the runtime's threads. As many sessions as it
/// has threads, opened in a network file system that did not answer, stopped all others.
#[test]
fn sessions_go_on_while_others_wait_for_their_directory() {
    let config = "remote/.epitome/config.toml";
    let replies = |_: &_| vec![ModelStep::Text("Hello.".to_owned())];
    let mut test: TestSession = Setup::with_files(&[(config, "")]).start(replies);
    let file = Unanswered::new(&test.cwd().join(config));
    let cwd = test.cwd().join("remote");
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let ticket = test.ticket();
            let opening = Opening { cwd: cwd.clone(), ..test.opening(&test.client, test.environment()) };
            test.sessions.create(ticket, opening);
            ticket
        })
        .collect();
    assert_eq!(test.ask("Hello?"), StopReason::EndTurn);
    let came = test.client.arrived().iter().any(|event| match event {
        SessionEvent::Answer { ticket, .. } => waiting.contains(ticket),
        _ => false,
    });
    assert!(!came, "the directory answered: nothing was tested");
    drop(file);
    for ticket in waiting {
        test.client.answer(ticket).expect("a session");
    }
}
