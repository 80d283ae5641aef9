//! Finds the process that holds a lock, so that an error can name it. Read-only; finds nothing on systems without a
//! list of locks.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the process that has locked the file, as `process 4711 (epitome)`.
pub fn holder(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = holder_in(&locks, metadata.dev(), metadata.ino())?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    Some(match name {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    })
}

/// Returns the id of the process that holds a lock on this file, according to the kernel's list with lines such as
/// `1: FLOCK  ADVISORY  WRITE 738 08:02:393222 0 EOF`.
fn holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let exact = format!("{major:02x}:{minor:02x}:{inode}");
    let of_inode = format!(":{inode}");
    let holders: Vec<(&str, u32)> = locks
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let kind = words.iter().position(|word| *word == "FLOCK")?;
            // Waiting processes have an arrow before the kind.
            let waits = words[..kind].contains(&"->");
            let (pid, file) = (words.get(kind + 3)?, words.get(kind + 4)?);
            // Processes in other containers have no process id in this one.
            let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
            (!waits && file.ends_with(&of_inode)).then_some((*file, pid))
        })
        .collect();
    let same = holders.iter().find(|(file, _)| *file == exact);
    // Some file systems report another device here than in their metadata.
    let only = || holders.first().filter(|_| holders.len() == 1);
    same.or_else(only).map(|(_, pid)| *pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 1 08:02:7 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 11 08:01:7 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 12 08:02:7 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 13 08:02:7 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 14 00:2a:99 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 0 08:02:5 0 EOF\n";
        let device = rustix::fs::makedev(8, 2);
        for (inode, wanted) in [(7, Some(12)), (99, Some(14)), (8, None), (5, None)] {
            assert_eq!(holder_in(locks, device, inode), wanted, "{inode}");
        }
    }
}
