//! Memory for large tables, and the sharing of slices between tasks.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use bytemuck::Pod;

const HUGE_PAGE: usize = 2 << 20;

/// A zeroed region of memory outside the heap.
///
/// Regions of 2 MiB or more start on a huge-page boundary and ask for huge pages: a thread
/// that streams weights through 4 KiB pages loses a quarter of its bandwidth. Pages are backed
/// when they are first touched.
pub(crate) struct Arena {
    /// Aligned start; within the mapping.
    start: NonNull<u8>,
    len: usize,
    mapping: NonNull<libc::c_void>,
    mapping_len: usize,
}

// SAFETY: an arena owns its memory like a `Vec<u8>`.
unsafe impl Send for Arena {}
// SAFETY: shared access only reads.
unsafe impl Sync for Arena {}

impl Arena {
    /// # Panics
    /// If the system refuses the address space.
    pub(crate) fn new(len: usize) -> Arena {
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { 1 };
        let mapping_len = len.max(1) + align - 1;
        // SAFETY: a new private anonymous mapping touches no other memory.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapping_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(mapping != libc::MAP_FAILED, "cannot map {len} bytes of memory");
        let mapping = NonNull::new(mapping).expect("mmap returned null");
        let offset = mapping.as_ptr().align_offset(align);
        // SAFETY: offset < align, and the mapping is len + align - 1 bytes long.
        let start = unsafe { mapping.cast::<u8>().add(offset) };
        #[cfg(target_os = "linux")]
        if len >= HUGE_PAGE {
            // SAFETY: the range lies inside the mapping; the advice changes no contents. It may
            // be refused (no huge pages in this kernel), which costs speed only.
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Arena { start, len, mapping, mapping_len }
    }

    /// A region of `n` elements.
    pub(crate) fn of<T: Pod>(n: usize) -> Arena {
        Arena::new(n.checked_mul(size_of::<T>()).expect("size of a table"))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_slice<T: Pod>(&self) -> &[T] {
        // SAFETY: the region is initialised (zeroed by the system), page-aligned, `len` bytes
        // long, and any bytes are a `T: Pod`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / size_of::<T>()) }
    }

    pub(crate) fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len / size_of::<T>())
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it outlives `self`.
        unsafe { libc::munmap(self.mapping.as_ptr(), self.mapping_len) };
    }
}

/// A mutable slice of which concurrent tasks take disjoint parts.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out parts of a `&mut [T]`, which may move to other threads if T may; that the
// parts are disjoint is the contract of `part`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// # Safety
    /// No two parts that are alive at the same time may overlap.
    ///
    /// # Panics
    /// If the range is outside the slice.
    #[expect(clippy::mut_from_ref, reason = "the contract excludes aliases")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part outside the slice");
        // SAFETY: inside the slice, and by contract no other reference covers these elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// # Safety
    /// No part that overlaps the range may be alive at the same time.
    ///
    /// # Panics
    /// If the range is outside the slice.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len, "part outside the slice");
        // SAFETY: inside the slice, and by contract nobody writes these elements.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// Start of the slice, for tasks whose parts interleave (columns of a matrix).
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.start
    }
}

/// A cache line, so that scratch memory is aligned to vectors.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

thread_local! {
    static SCRATCH: std::cell::Cell<Vec<Line>> = const { std::cell::Cell::new(Vec::new()) };
}

/// Calls `f` with `n` floats of this thread's scratch memory, whose contents are arbitrary.
pub(crate) fn with_scratch<R>(n: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    SCRATCH.with(|cell| {
        let mut lines = cell.take();
        let n_lines = n.div_ceil(16);
        if lines.len() < n_lines {
            lines.resize(n_lines, Line([0.0; 16]));
        }
        let floats: &mut [f32] = bytemuck::cast_slice_mut(&mut lines[..n_lines]);
        let result = f(&mut floats[..n]);
        cell.set(lines);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_are_zeroed_aligned_and_writable() {
        for len in [0, 1, 100, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 17] {
            let mut arena = Arena::new(len);
            assert_eq!(arena.len(), len);
            assert!(arena.as_slice::<u8>().iter().all(|&b| b == 0));
            if len >= HUGE_PAGE {
                assert_eq!(arena.as_slice::<u8>().as_ptr().align_offset(HUGE_PAGE), 0);
            }
            arena.as_mut_slice::<u8>().fill(7);
            assert_eq!(arena.as_slice::<u8>().iter().map(|&b| b as usize).sum::<usize>(), 7 * len);
        }
    }

    #[test]
    fn scratch_is_aligned_and_nests() {
        with_scratch(100, |a| {
            a.fill(1.0);
            assert_eq!(a.as_ptr().align_offset(64), 0);
            with_scratch(200, |b| b.fill(2.0));
            assert!(a.iter().all(|&x| x == 1.0));
        });
    }
}
