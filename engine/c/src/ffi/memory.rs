//! Memory of malloc(3), which C may free.

use std::ffi::{c_char, c_void};
use std::ptr;

use iof_proto::Status;

use crate::ffi::guard::{OrStatus, Outcome};
use crate::ffi::types::iof_proc_t;

/// Allocates `count` values, all zero. Returns NULL if `count` is 0 or memory is exhausted.
pub(crate) fn zeroed<T>(count: usize) -> *mut T {
    if count == 0 {
        return ptr::null_mut();
    }
    // SAFETY: calloc checks the product, and returns memory that is aligned for every type of C.
    unsafe { libc::calloc(count, size_of::<T>()) }.cast()
}

/// Returns a terminated copy of `text` up to its first NUL, or NULL if memory is exhausted.
pub(crate) fn text(text: &[u8]) -> *mut c_char {
    let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let copy: *mut u8 = zeroed(length.saturating_add(1));
    if !copy.is_null() {
        // SAFETY: there is room for `length` bytes and a terminator, which is already zero.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), copy, length) };
    }
    copy.cast()
}

/// Returns copies of `texts` in an array that ends with NULL, or NULL if memory is exhausted.
pub(crate) fn texts(texts: &[impl AsRef<[u8]>]) -> *mut *mut c_char {
    let array: *mut *mut c_char = zeroed(texts.len().saturating_add(1));
    if !array.is_null() {
        for (index, from) in texts.iter().enumerate() {
            let copy = text(from.as_ref());
            // SAFETY: there is room for all texts and a NULL, which is there already.
            unsafe { array.wrapping_add(index).write(copy) };
            if copy.is_null() {
                // SAFETY: the array was created here, and ends with this NULL.
                unsafe { free_texts(array) };
                return ptr::null_mut();
            }
        }
    }
    array
}

/// Frees an array of texts that ends with NULL, and its texts. Does nothing for NULL.
///
/// # Safety
/// This module or C's malloc allocated all of them, and they are not used any more.
pub(crate) unsafe fn free_texts(texts: *mut *mut c_char) {
    if texts.is_null() {
        return;
    }
    let mut next = texts;
    // SAFETY: the caller's promise: the array ends with NULL.
    unsafe {
        while !(*next).is_null() {
            free(*next);
            next = next.wrapping_add(1);
        }
        free(texts);
    }
}

/// Returns the number of texts in an array that ends with NULL; 0 for NULL.
///
/// # Safety
/// The array is readable up to its NULL.
pub(crate) unsafe fn count_texts(texts: *mut *mut c_char) -> usize {
    let mut count: usize = 0;
    // SAFETY: the caller's promise: the array ends with NULL.
    while !texts.is_null() && !unsafe { *texts.wrapping_add(count) }.is_null() {
        count = count.saturating_add(1);
    }
    count
}

/// Returns `texts`, which ends with NULL or is NULL, with a copy of `added` at its end. The array
/// may have moved. Fails if it has `limit` texts or memory is exhausted; then it is unchanged.
///
/// # Safety
/// C's malloc allocated the array, which nothing else refers to.
pub(crate) unsafe fn append_text(
    texts: *mut *mut c_char,
    added: &[u8],
    limit: usize,
) -> Outcome<*mut *mut c_char> {
    // SAFETY: the caller's promise.
    let count = unsafe { count_texts(texts) };
    if count >= limit {
        return Err(Status::ERR_OUT_OF_RESOURCE);
    }
    let copy = checked(text(added))?;
    let size = count.saturating_add(2).saturating_mul(size_of::<*mut c_char>());
    // SAFETY: the caller's promise.
    let array: *mut *mut c_char = unsafe { libc::realloc(texts.cast(), size) }.cast();
    // SAFETY: the copy was allocated here; the array has room for `count` texts, this one and a
    // NULL.
    unsafe {
        if array.is_null() {
            free(copy);
            return Err(Status::ERR_NOMEM);
        }
        array.wrapping_add(count).write(copy);
        array.wrapping_add(count.saturating_add(1)).write(ptr::null_mut());
    }
    Ok(array)
}

/// Returns a copy of `size` bytes at `from`, or NULL if there are none or memory is exhausted.
///
/// # Safety
/// The bytes are readable.
pub(crate) unsafe fn copied(from: *const c_char, size: usize) -> *mut c_char {
    if from.is_null() {
        return ptr::null_mut();
    }
    let copy: *mut c_char = zeroed(size);
    if !copy.is_null() {
        // SAFETY: there is room for `size` bytes.
        unsafe { ptr::copy_nonoverlapping(from, copy, size) };
    }
    copy
}

/// Returns a copy on the Rust heap. Fails, instead of aborting, if memory is exhausted.
pub(crate) fn owned(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).or_status(Status::ERR_NOMEM)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Frees memory that a function of this module returned, or that C has from malloc.
///
/// # Safety
/// The memory is not used any more.
pub(crate) unsafe fn free<T>(memory: *mut T) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(memory.cast::<c_void>()) };
}

/// Returns a name or key as C has it: as much of `text` as fits, with a terminator, and zeros.
pub(crate) fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *place = byte.cast_signed() as c_char;
    }
    array
}

pub(crate) fn proc(from: &iof_proto::Proc) -> iof_proc_t {
    iof_proc_t { nspace: characters(from.nspace.as_str()), rank: from.rank.0 }
}

/// Copies values into an array that C frees, and that then owns all that they point to. Returns
/// NULL if there are none or memory is exhausted.
pub(crate) fn give<T: Copy>(values: &[T]) -> *mut T {
    let array: *mut T = zeroed(values.len());
    if !array.is_null() {
        // SAFETY: there is room for all values.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), array, values.len()) };
    }
    array
}

/// Fails if a function of this module has returned NULL for something, because memory is exhausted.
pub(crate) fn checked<T>(memory: *mut T) -> Outcome<*mut T> {
    if memory.is_null() { Err(Status::ERR_NOMEM) } else { Ok(memory) }
}
