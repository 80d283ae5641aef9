//! Memory that a process which waits has no use for: pages of program files that its start touched once, and
//! heap that was freed.
//!
//! A front end lives as long as a window and does next to nothing. Its start reads through the whole program
//! (arguments, configuration, a place to connect to), and the system keeps every page of it in the process's
//! account. Pages of a file that nobody wrote to can be let go at any time: the next use finds them again.

use std::ops::Range;
use std::time::Duration;

/// How often a daemon that waits looks whether it has grown.
pub const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Growth that is worth a look at the heap, in bytes.
const GROWN_BYTES: u64 = 1 << 20;

/// Lets go of what a start has left behind. Nothing is lost, and where the system can't do it nothing happens.
pub fn let_go_of_program() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for pages in program_pages(&maps) {
        // SAFETY: the range is a mapping of a file, shown as readable or executable alone and holding no byte
        // that was written (see `program_pages`): letting go of its pages makes the system read them from the
        // file again when they are used, and changes nothing that the program can see.
        unsafe { libc::madvise(pages.start as *mut libc::c_void, pages.len(), libc::MADV_DONTNEED) };
    }
}

/// Gives freed heap back to the system.
pub fn give_back_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number and no pointer, and locks what it touches.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The part of a program that never changes: its code, and the constants in front of it.
///
/// What lies behind the code is left out although it is shown as readable alone: the loader has written
/// addresses into it before it closed it.
fn program_pages(maps: &str) -> Vec<Range<usize>> {
    let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(Mapping::read).collect();
    let is_program = |path: &str| mappings.iter().any(|other| other.path == path && other.access == "r-xp");
    let constants =
        |mapping: &Mapping<'_>| mapping.access == "r--p" && mapping.offset == 0 && is_program(mapping.path);
    let fixed = mappings.iter().filter(|mapping| mapping.access == "r-xp" || constants(mapping));
    fixed.map(|mapping| mapping.pages.clone()).collect()
}

/// A mapping of a file.
struct Mapping<'a> {
    pages: Range<usize>,
    access: &'a str,
    offset: u64,
    path: &'a str,
}

impl Mapping<'_> {
    fn read(line: &str) -> Option<Mapping<'_>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (access, offset) = (words.next()?, words.next()?);
        let path = words.nth(2).filter(|path| path.starts_with('/'))?;
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        Some(Mapping {
            pages: address(start)?..address(end)?,
            access,
            offset: u64::from_str_radix(offset, 16).ok()?,
            path,
        })
    }
}

/// Knows when a waiting daemon has grown since it was made lean.
#[derive(Default)]
pub struct Lean {
    resident: u64,
}

impl Lean {
    /// Makes the process lean if it has grown. Takes milliseconds; for a thread that may wait.
    pub fn look(&mut self) {
        if resident().is_some_and(|now| now > self.resident + GROWN_BYTES) {
            give_back_heap();
            let_go_of_program();
            self.resident = resident().unwrap_or_default();
        }
    }
}

/// Bytes of this process in memory.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_the_constants_before_it_are_let_go_and_what_was_written_is_not() {
        let maps = "\
1000-2000 r--p 00000000 fe:00 1 /usr/bin/epitome
2000-4000 r-xp 00001000 fe:00 1 /usr/bin/epitome
4000-5000 r--p 00003000 fe:00 1 /usr/bin/epitome
5000-6000 rw-p 00004000 fe:00 1 /usr/bin/epitome
6000-7000 rw-p 00000000 00:00 0 [heap]
7000-8000 r--p 00000000 fe:00 2 /usr/lib/locale/C.utf8
8000-9000 r-xp 00000000 00:00 0 [vdso]
9000-a000 r-xp 00001000 fe:00 3 /usr/lib/libc.so.6 (deleted)
nonsense
";
        assert_eq!(program_pages(maps), [0x1000..0x2000, 0x2000..0x4000, 0x9000..0xa000]);
        assert!(program_pages("").is_empty());
    }

    #[test]
    fn a_process_that_let_go_of_its_program_goes_on() {
        let before = resident();
        let_go_of_program();
        give_back_heap();
        assert!(before.is_some() && resident().is_some());
    }
}
