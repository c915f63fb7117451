//! Arrays of texts, such as arguments and environments.

use std::ffi::{c_char, c_int};
use std::ptr;

use crate::constants::*;
use crate::guard::{Outcome, guard, guard_or};
use crate::jobs::{MAX_ARG, MAX_ARGS};
use crate::types::iof_status_t;
use crate::{memory, read};

/// Appends a copy of arg to an array of texts, which ends with NULL. *argv may be NULL, for an
/// empty array, and receives the new array, to be freed by iof_Argv_free. On an error the array is
/// unchanged. Errors: IOF_ERR_BAD_PARAM if arg is longer than 128 KiB; IOF_ERR_OUT_OF_RESOURCE if
/// the array has 65,536 texts; IOF_ERR_NOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_append_nosize(
    argv: *mut *mut *mut c_char,
    arg: *const c_char,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let place = read::place(argv)?;
            *place = memory::append_text(*place, read::bytes(arg, MAX_ARG)?, MAX_ARGS)?;
        }
        Ok(IOF_SUCCESS)
    })
}

/// Returns the number of texts in an array that ends with NULL. A NULL array is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_count(argv: *mut *mut c_char) -> c_int {
    // SAFETY: the contract in the header.
    guard_or(0, || c_int::try_from(unsafe { memory::count_texts(argv) }).unwrap_or(c_int::MAX))
}

/// Frees an array of texts that ends with NULL, and its texts. NULL has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_free(argv: *mut *mut c_char) {
    // SAFETY: the contract in the header.
    guard_or((), || unsafe { memory::free_texts(argv) });
}

/// Adds a copy of arg before the texts of an array, as iof_Argv_append_nosize does behind them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_prepend_nosize(
    argv: *mut *mut *mut c_char,
    arg: *const c_char,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let first = read::bytes(arg, MAX_ARG)?.to_vec();
            change(argv, |texts| {
                texts.insert(0, first);
                Ok(())
            })
        }
    })
}

/// The same as iof_Argv_append_nosize, without effect if the array has the text already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_append_unique_nosize(
    argv: *mut *mut *mut c_char,
    arg: *const c_char,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let last = read::bytes(arg, MAX_ARG)?.to_vec();
            change(argv, |texts| {
                if !texts.contains(&last) {
                    texts.push(last);
                }
                Ok(())
            })
        }
    })
}

/// Returns a copy of an array of texts, to be freed by iof_Argv_free. Returns NULL if the array is
/// NULL or empty, if it has more than 65,536 texts or one that is longer than 128 KiB, or if memory
/// is exhausted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_copy(argv: *mut *mut c_char) -> *mut *mut c_char {
    // SAFETY: the contract in the header.
    guard_or(ptr::null_mut(), || unsafe { texts(argv) }.map_or(ptr::null_mut(), |texts| made(&texts)))
}

/// Returns the texts of an array, separated by delimiter, as one text, to be freed by free(3).
/// Returns NULL in the cases in which iof_Argv_copy does, except that an array that is NULL or
/// empty makes an empty text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_join(argv: *mut *mut c_char, delimiter: c_int) -> *mut c_char {
    guard_or(ptr::null_mut(), || {
        // SAFETY: the contract in the header.
        let (Ok(texts), Ok(delimiter)) = (unsafe { texts(argv) }, u8::try_from(delimiter)) else {
            return ptr::null_mut();
        };
        memory::text(&texts.join(&delimiter))
    })
}

/// Returns the parts of a text between delimiters, without empty ones, as an array of texts, to be
/// freed by iof_Argv_free. Returns NULL if there are none, if the text is NULL or longer than 128
/// KiB, or if memory is exhausted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_split(src: *const c_char, delimiter: c_int) -> *mut *mut c_char {
    guard_or(ptr::null_mut(), || {
        // SAFETY: the contract in the header.
        let (Ok(text), Ok(delimiter)) = (unsafe { read::bytes(src, MAX_ARG) }, u8::try_from(delimiter))
        else {
            return ptr::null_mut();
        };
        let parts = text.split(|byte| *byte == delimiter).filter(|part| !part.is_empty());
        made(&parts.map(<[u8]>::to_vec).collect::<Vec<_>>())
    })
}

/// Sets a variable in an environment, an array of texts of the form NAME=VALUE, which is changed as
/// by iof_Argv_append_nosize. A value that is NULL is empty. Errors: those of
/// iof_Argv_append_nosize; IOF_ERR_EXISTS if the variable is set and overwrite is false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Setenv(
    name: *const c_char,
    value: *const c_char,
    overwrite: bool,
    env: *mut *mut *mut c_char,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let start = [read::bytes(name, MAX_ARG)?, b"="].concat();
            let value = if value.is_null() { &[] } else { read::bytes(value, MAX_ARG)? };
            change(env, |texts| {
                let variable = [&start, value].concat();
                match texts.iter_mut().find(|text| text.starts_with(&start)) {
                    Some(_) if !overwrite => return Err(IOF_ERR_EXISTS),
                    Some(text) => *text = variable,
                    None => texts.push(variable),
                }
                Ok(())
            })
        }
    })
}

/// Reads an array of texts. NULL is empty.
///
/// # Safety
/// The contract of [`read`].
unsafe fn texts(argv: *mut *mut c_char) -> Outcome<Vec<Vec<u8>>> {
    // SAFETY: the caller's promise.
    unsafe { read::texts(argv, MAX_ARGS, MAX_ARG) }
}

/// Returns an array with these texts, or NULL if there are none or memory is exhausted.
fn made(texts: &[Vec<u8>]) -> *mut *mut c_char {
    if texts.is_empty() { ptr::null_mut() } else { memory::texts(texts) }
}

/// Replaces an array by one with the texts that `edit` leaves. On an error it is unchanged.
///
/// # Safety
/// The contract of [`read`]; malloc has allocated the array and its texts.
unsafe fn change(
    argv: *mut *mut *mut c_char,
    edit: impl FnOnce(&mut Vec<Vec<u8>>) -> Outcome<()>,
) -> Outcome<iof_status_t> {
    // SAFETY: the caller's promise.
    unsafe {
        let place = read::place(argv)?;
        let mut all = texts(*place)?;
        edit(&mut all)?;
        if all.len() > MAX_ARGS {
            return Err(IOF_ERR_OUT_OF_RESOURCE);
        }
        let new = memory::texts(&all);
        if new.is_null() {
            return Err(IOF_ERR_NOMEM);
        }
        memory::free_texts(std::mem::replace(place, new));
    }
    Ok(IOF_SUCCESS)
}
