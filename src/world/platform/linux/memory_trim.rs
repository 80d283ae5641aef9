//! Returns memory that an idle process does not need: pages of program files that were used only during startup, and
//! freed heap.
//!
//! A front end lives as long as the editor's window and does very little. Its startup (arguments, configuration,
//! connecting) touches most of the executable, and the kernel keeps counting those pages as the process's memory.
//! Clean file-backed pages can be dropped at any time: the next access reads them from the file again.

use std::ops::Range;

/// The number of heaps that all threads share. With one, threads that allocate at once wait for each other: `session/new`
/// took a sixth longer than with a heap per thread. With two, it took a tenth longer, which may be noise.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Has all threads share few heaps; call it before the first thread is started. With a heap per thread, the end of each
/// keeps what the thread ever needed: [`trim`] returns only that of the first to the system.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes two integers and no pointer.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

/// Releases all of it. Takes milliseconds; call it on a thread that may block.
pub fn trim() {
    release_heap();
    let_go_of_program();
}

/// Drops the pages of program files that were touched during startup. Nothing is lost; does nothing on systems
/// without support.
pub fn let_go_of_program() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for pages in program_pages(&maps) {
        // SAFETY: the range is a file mapping that is read-only or executable and contains no written byte
        // (see `program_pages`). Dropping its pages makes the kernel read them from the file again on the
        // next access, which the program can't observe.
        unsafe { libc::madvise(pages.start as *mut libc::c_void, pages.len(), libc::MADV_DONTNEED) };
    }
}

/// Returns freed heap memory to the system.
fn release_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes an integer and no pointer, and does its own locking.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the address ranges of a program that never change: its code, and the constants that precede it.
///
/// Read-only mappings after the code are excluded: the loader has written relocated addresses into them before it
/// made them read-only.
fn program_pages(maps: &str) -> Vec<Range<usize>> {
    let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(Mapping::read).collect();
    let is_program = |path: &str| mappings.iter().any(|other| other.path == path && other.access == "r-xp");
    let constants =
        |mapping: &Mapping<'_>| mapping.access == "r--p" && mapping.offset == 0 && is_program(mapping.path);
    let fixed = mappings.iter().filter(|mapping| mapping.access == "r-xp" || constants(mapping));
    fixed.map(|mapping| mapping.pages.clone()).collect()
}

/// A mapped file, from a line of `/proc/self/maps`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unmodified_program_pages_are_released() {
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
    fn a_process_survives_releasing_its_program_pages() {
        trim();
        assert!(crate::process::resident_bytes().is_some());
    }
}
