//! Counts the heap allocations of sessions: of the threads of their runtimes, so that a scripted model in the same
//! process does not count. Unlike times, the numbers hardly depend on what else the machine does.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, as `#[global_allocator]` of a test program that reads [`count`].
pub struct CountingAllocator;

// SAFETY: every call is passed on to the system's allocator as it is. The counter does not allocate: it is an atomic,
// and the thread's flag is initialized at compile time and has no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promises are the same.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn count_one() {
    if IS_COUNTED.get() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts the allocations of the calling thread from now on.
pub fn count_this_thread() {
    IS_COUNTED.set(true);
}

/// Allocations of all counted threads since the process began; 0 without the [`CountingAllocator`].
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}
