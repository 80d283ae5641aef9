//! The store and checkpoints on simulated disks, whose calls fail and whose power is lost at any time.

#[cfg(test)]
mod checkpoint;
#[cfg(test)]
mod store;
