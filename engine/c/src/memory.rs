//! Memory that C may free: malloc's.

use std::ffi::{c_char, c_void};
use std::ptr;

use crate::constants::IOF_ERR_NOMEM;
use crate::guard::{OrStatus, Outcome};
use crate::types::{iof_info_t, iof_key_t, iof_nspace_t, iof_proc_t};

/// Room for `count` values, all zero; NULL if there is no memory, or for none.
pub(crate) fn zeroed<T>(count: usize) -> *mut T {
    if count == 0 {
        return ptr::null_mut();
    }
    // SAFETY: calloc checks the product, and what it gives is aligned for every type of C.
    unsafe { libc::calloc(count, size_of::<T>()) }.cast()
}

/// A terminated copy, up to the first NUL of `text`; NULL if there is no memory.
pub(crate) fn text(text: &[u8]) -> *mut c_char {
    let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let copy: *mut u8 = zeroed(length.saturating_add(1));
    if !copy.is_null() {
        // SAFETY: there is room for so many bytes and a terminator, which is there already.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), copy, length) };
    }
    copy.cast()
}

/// A copy of `size` bytes at `from`; NULL if there is no memory, or for none.
///
/// # Safety
/// They can be read.
pub(crate) unsafe fn copied(from: *const c_char, size: usize) -> *mut c_char {
    if from.is_null() {
        return ptr::null_mut();
    }
    let copy: *mut c_char = zeroed(size);
    if !copy.is_null() {
        // SAFETY: there is room for so many.
        unsafe { ptr::copy_nonoverlapping(from, copy, size) };
    }
    copy
}

/// A copy for ourselves, of what may be more than there is memory for.
pub(crate) fn owned(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).or_status(IOF_ERR_NOMEM)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Gives back what one of the above gave, or what C has of malloc.
///
/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe fn free<T>(memory: *mut T) {
    // SAFETY: as promised to us.
    unsafe { libc::free(memory.cast::<c_void>()) };
}

/// `text` as far as it fits, terminated, and zeros behind it.
pub(crate) fn fill(array: &mut [c_char], text: &[u8]) {
    array.fill(0);
    let room = array.len().saturating_sub(1);
    for (to, from) in array.iter_mut().take(room).zip(text) {
        *to = from.cast_signed() as c_char;
    }
}

pub(crate) fn key(text: &str) -> iof_key_t {
    let mut key = [0; 512];
    fill(&mut key, text.as_bytes());
    key
}

pub(crate) fn nspace(name: &str) -> iof_nspace_t {
    let mut nspace = [0; 256];
    fill(&mut nspace, name.as_bytes());
    nspace
}

pub(crate) fn proc(from: &iof_proto::Proc) -> iof_proc_t {
    iof_proc_t { nspace: nspace(from.nspace.as_str()), rank: from.rank.0 }
}

/// An array of infos that were given away, to be freed by C.
pub(crate) fn give(infos: &[iof_info_t]) -> *mut iof_info_t {
    let array: *mut iof_info_t = zeroed(infos.len());
    if !array.is_null() {
        // SAFETY: there is room for so many.
        unsafe { ptr::copy_nonoverlapping(infos.as_ptr(), array, infos.len()) };
    }
    array
}
