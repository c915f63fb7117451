//! Values: how they are filled, copied and freed, with all that they point to. A value owns memory
//! of malloc(3).
//!
//! The contract behind every `unsafe` block of this module is the caller's, as in
//! [`read`](crate::ffi::read): the type of a value specifies which field is valid, and what that field
//! points to is valid, too. Nothing else uses a value while it is freed or filled.

use std::ffi::{c_char, c_void};
use std::ptr;

use iof_proto::Status;

use crate::ffi::constants::*;
use crate::ffi::guard::Outcome;
use crate::ffi::types::{
    iof_byte_object_t, iof_data_array_t, iof_data_type_t, iof_envar_t, iof_info_t, iof_nspace_t,
    iof_proc_info_t, iof_proc_t, iof_query_t, iof_regattr_t, iof_value_data_t, iof_value_t,
};
use crate::ffi::{memory, read};

/// The maximum depth of arrays in arrays. A deeper value is assumed to contain itself.
const MAX_DEPTH: usize = 16;
/// The maximum number of elements of an array.
const MAX_ELEMENTS: usize = 1 << 20;
/// The maximum length of a text, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// No value.
pub(crate) const NOTHING: iof_value_t =
    iof_value_t { r#type: PMIX_UNDEF, data: iof_value_data_t { envar: NO_ENVAR } };
const NO_ENVAR: iof_envar_t = iof_envar_t { envar: ptr::null_mut(), value: ptr::null_mut(), separator: 0 };

/// Returns the size of a value of this type in bytes. Returns `None` if the type is unknown or its
/// values point to other memory.
pub(crate) fn plain_size(kind: iof_data_type_t) -> Option<usize> {
    Some(match kind {
        PMIX_BOOL | PMIX_BYTE | PMIX_INT8 | PMIX_UINT8 | PMIX_PROC_STATE => 1,
        PMIX_INT16 | PMIX_UINT16 | PMIX_IOF_CHANNEL => 2,
        PMIX_PID | PMIX_INT | PMIX_INT32 | PMIX_UINT | PMIX_UINT32 | PMIX_FLOAT | PMIX_STATUS
        | PMIX_PROC_RANK => 4,
        PMIX_SIZE | PMIX_INT64 | PMIX_UINT64 | PMIX_DOUBLE | PMIX_TIME | PMIX_POINTER => 8,
        PMIX_TIMEVAL => size_of::<libc::timeval>(),
        _ => return None,
    })
}

/// Returns the size of an array's element of this type, in bytes.
fn element_size(kind: iof_data_type_t) -> Option<usize> {
    Some(match kind {
        PMIX_STRING => size_of::<*mut c_char>(),
        PMIX_VALUE => size_of::<iof_value_t>(),
        PMIX_INFO => size_of::<iof_info_t>(),
        PMIX_PROC => size_of::<iof_proc_t>(),
        PMIX_PROC_NSPACE => size_of::<iof_nspace_t>(),
        PMIX_BYTE_OBJECT => size_of::<iof_byte_object_t>(),
        PMIX_PROC_INFO => size_of::<iof_proc_info_t>(),
        PMIX_ENVAR => size_of::<iof_envar_t>(),
        PMIX_REGATTR => size_of::<iof_regattr_t>(),
        PMIX_QUERY => size_of::<iof_query_t>(),
        _ => return plain_size(kind),
    })
}

/// Returns an array of `count` elements that are all zero, or an empty one if it cannot be made.
pub(crate) fn empty_array(count: usize, kind: iof_data_type_t) -> iof_data_array_t {
    let length = element_size(kind).and_then(|size| size.checked_mul(count)).unwrap_or(0);
    let array: *mut u8 = memory::zeroed(length);
    let size = if array.is_null() { 0 } else { count };
    iof_data_array_t { r#type: kind, size, array: array.cast() }
}

/// Returns a value with a copy of `data`, for `iof_Value_load`.
///
/// # Safety
/// The module's contract; `data` points to a value of type `kind`, or is the text itself.
pub(crate) unsafe fn load(data: *const c_void, kind: iof_data_type_t) -> Outcome<iof_value_t> {
    let mut value = iof_value_t { r#type: kind, ..NOTHING };
    if data.is_null() {
        return match kind {
            // A flag without a value.
            PMIX_BOOL => {
                value.data.flag = true;
                Ok(value)
            }
            PMIX_UNDEF | PMIX_STRING | PMIX_POINTER | PMIX_BYTE_OBJECT => Ok(value),
            _ => Err(Status::ERR_BAD_PARAM),
        };
    }
    if kind == PMIX_POINTER {
        value.data.ptr = data.cast_mut();
        return Ok(value);
    }
    if let Some(size) = plain_size(kind) {
        // SAFETY: all fields begin at the start of the union, which has room for the largest of
        // them.
        unsafe { ptr::copy_nonoverlapping(data.cast::<u8>(), (&raw mut value.data).cast(), size) };
        return Ok(value);
    }
    let mut from = iof_value_t { r#type: kind, ..NOTHING };
    // SAFETY: the module's contract; `data` is used as a pointer to the type.
    unsafe {
        match kind {
            PMIX_BYTE_OBJECT => from.data.bo = *read::one(data.cast())?,
            PMIX_ENVAR => from.data.envar = *read::one(data.cast())?,
            PMIX_UNDEF => return Err(Status::ERR_UNKNOWN_DATA_TYPE),
            // If the type is known, its field is a pointer to the data.
            _ => from.data.ptr = data.cast_mut(),
        }
        copy(&from, 0)
    }
}

/// Returns a copy of a value, with copies of all that it points to.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn copy(from: &iof_value_t, depth: usize) -> Outcome<iof_value_t> {
    let mut to = *from;
    // SAFETY: the module's contract; the type specifies the field.
    unsafe {
        match from.r#type {
            PMIX_STRING => to.data.string = copy_text(from.data.string)?,
            PMIX_BYTE_OBJECT => to.data.bo = copy_bytes(&from.data.bo)?,
            PMIX_ENVAR => to.data.envar = copy_envar(&from.data.envar)?,
            PMIX_PROC => to.data.proc = boxed(*read::one(from.data.proc)?)?,
            PMIX_PROC_NSPACE => to.data.nspace = boxed(*read::one(from.data.nspace)?)?,
            PMIX_PROC_INFO => to.data.pinfo = boxed(copy_proc_info(read::one(from.data.pinfo)?)?)?,
            PMIX_DATA_ARRAY => {
                to.data.darray = boxed(copy_array(read::one(from.data.darray)?, depth)?)?;
            }
            PMIX_UNDEF => {}
            kind if plain_size(kind).is_some() => {}
            _ => return Err(Status::ERR_UNKNOWN_DATA_TYPE),
        }
    }
    Ok(to)
}

/// Moves `value` into memory of its own.
fn boxed<T: Copy>(value: T) -> Outcome<*mut T> {
    memory::checked(memory::give(&[value]))
}

unsafe fn copy_text(from: *mut c_char) -> Outcome<*mut c_char> {
    if from.is_null() {
        return Ok(from);
    }
    // SAFETY: the module's contract.
    memory::checked(memory::text(unsafe { read::bytes(from, MAX_BYTES) }?))
}

/// Copies two texts. On an error, no copy is left.
unsafe fn copy_pair(first: *mut c_char, second: *mut c_char) -> Outcome<(*mut c_char, *mut c_char)> {
    // SAFETY: the module's contract; the first copy was created here.
    unsafe {
        let first = copy_text(first)?;
        let second = copy_text(second).inspect_err(|_| memory::free(first))?;
        Ok((first, second))
    }
}

/// Copies an array of texts that ends with NULL.
unsafe fn copy_texts(from: *mut *mut c_char) -> Outcome<*mut *mut c_char> {
    if from.is_null() {
        return Ok(from);
    }
    // SAFETY: the module's contract.
    memory::checked(memory::texts(&unsafe { read::texts(from, MAX_ELEMENTS, MAX_BYTES) }?))
}

unsafe fn copy_bytes(from: &iof_byte_object_t) -> Outcome<iof_byte_object_t> {
    // SAFETY: the module's contract.
    let bytes = unsafe { memory::copied(from.bytes, from.size) };
    if bytes.is_null() && from.size > 0 && !from.bytes.is_null() {
        return Err(Status::ERR_NOMEM);
    }
    Ok(iof_byte_object_t { bytes, size: if bytes.is_null() { 0 } else { from.size } })
}

unsafe fn copy_envar(from: &iof_envar_t) -> Outcome<iof_envar_t> {
    // SAFETY: the module's contract.
    let (envar, value) = unsafe { copy_pair(from.envar, from.value) }?;
    Ok(iof_envar_t { envar, value, ..*from })
}

unsafe fn copy_proc_info(from: &iof_proc_info_t) -> Outcome<iof_proc_info_t> {
    // SAFETY: the module's contract.
    let (hostname, executable_name) = unsafe { copy_pair(from.hostname, from.executable_name) }?;
    Ok(iof_proc_info_t { hostname, executable_name, ..*from })
}

/// Returns a copy of an array, with copies of all that its elements point to.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn copy_array(from: &iof_data_array_t, depth: usize) -> Outcome<iof_data_array_t> {
    let size = element_size(from.r#type).ok_or(Status::ERR_UNKNOWN_DATA_TYPE)?;
    if depth >= MAX_DEPTH || from.size > MAX_ELEMENTS || (from.array.is_null() && from.size > 0) {
        return Err(Status::ERR_BAD_PARAM);
    }
    let total = from.size.checked_mul(size).ok_or(Status::ERR_BAD_PARAM)?;
    let mut to = iof_data_array_t { array: memory::zeroed::<u8>(total).cast(), ..*from };
    if to.array.is_null() && total > 0 {
        return Err(Status::ERR_NOMEM);
    }
    for index in 0..from.size {
        // SAFETY: the module's contract; elements that are not copied yet are zero, and own no
        // memory.
        let copied = unsafe { copy_element(from.r#type, nth(from, index), nth(&to, index), depth) };
        if let Err(status) = copied {
            // SAFETY: the copy was created here.
            unsafe { destroy_array(&mut to, depth) };
            return Err(status);
        }
    }
    Ok(to)
}

/// Returns the address of an element.
fn nth(array: &iof_data_array_t, index: usize) -> *mut c_void {
    let size = element_size(array.r#type).unwrap_or_default();
    array.array.cast::<u8>().wrapping_add(index.saturating_mul(size)).cast()
}

unsafe fn copy_element(
    kind: iof_data_type_t,
    from: *mut c_void,
    to: *mut c_void,
    depth: usize,
) -> Outcome<()> {
    /// Copies one element of a type.
    ///
    /// # Safety
    /// `from` and `to` point to elements of this type.
    unsafe fn one<T>(from: *mut c_void, to: *mut c_void, copy: impl FnOnce(&T) -> Outcome<T>) -> Outcome<()> {
        // SAFETY: the module's contract.
        unsafe { to.cast::<T>().write(copy(read::one(from.cast())?)?) };
        Ok(())
    }
    let deeper = depth.saturating_add(1);
    // SAFETY: the module's contract; the type specifies the elements.
    unsafe {
        match kind {
            PMIX_STRING => one(from, to, |text| copy_text(*text)),
            PMIX_VALUE => one(from, to, |value| copy(value, deeper)),
            PMIX_INFO => one(from, to, |info: &iof_info_t| {
                Ok(iof_info_t {
                    value: copy(&info.value, deeper)?,
                    flags: info.flags & !PMIX_INFO_PERSISTENT,
                    ..*info
                })
            }),
            PMIX_BYTE_OBJECT => one(from, to, |bo| copy_bytes(bo)),
            PMIX_PROC_INFO => one(from, to, |info| copy_proc_info(info)),
            PMIX_ENVAR => one(from, to, |envar| copy_envar(envar)),
            PMIX_REGATTR => one(from, to, |attr: &iof_regattr_t| {
                let name = copy_text(attr.name)?;
                let description = copy_texts(attr.description).inspect_err(|_| memory::free(name))?;
                Ok(iof_regattr_t { name, description, ..*attr })
            }),
            PMIX_QUERY => Err(Status::ERR_UNKNOWN_DATA_TYPE),
            _ => {
                let size = element_size(kind).unwrap_or_default();
                ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), size);
                Ok(())
            }
        }
    }
}

/// Frees what a value points to, and makes it empty. Values of unknown types are not freed.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn destroy(value: &mut iof_value_t, depth: usize) {
    // SAFETY: the module's contract; the type specifies the field.
    unsafe {
        match value.r#type {
            PMIX_STRING => memory::free(value.data.string),
            PMIX_BYTE_OBJECT => memory::free(value.data.bo.bytes),
            PMIX_ENVAR => destroy_envar(&value.data.envar),
            PMIX_PROC => memory::free(value.data.proc),
            PMIX_PROC_NSPACE => memory::free(value.data.nspace),
            PMIX_PROC_INFO => {
                if let Ok(info) = read::place(value.data.pinfo) {
                    destroy_proc_info(info);
                    memory::free(value.data.pinfo);
                }
            }
            PMIX_DATA_ARRAY => {
                if let Ok(array) = read::place(value.data.darray) {
                    destroy_array(array, depth);
                    memory::free(value.data.darray);
                }
            }
            _ => {}
        }
    }
    *value = NOTHING;
}

/// Frees the elements of an array, and makes it empty.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn destroy_array(array: &mut iof_data_array_t, depth: usize) {
    if element_size(array.r#type).is_some() && depth < MAX_DEPTH && array.size <= MAX_ELEMENTS {
        let count = if array.array.is_null() { 0 } else { array.size };
        for index in 0..count {
            // SAFETY: the module's contract.
            unsafe { destroy_element(array.r#type, nth(array, index), depth) };
        }
    }
    // SAFETY: the module's contract.
    unsafe { memory::free(array.array) };
    *array = iof_data_array_t { r#type: PMIX_UNDEF, size: 0, array: ptr::null_mut() };
}

unsafe fn destroy_element(kind: iof_data_type_t, element: *mut c_void, depth: usize) {
    let deeper = depth.saturating_add(1);
    // SAFETY: the module's contract; the type specifies the elements.
    unsafe {
        match kind {
            PMIX_STRING => memory::free(*element.cast::<*mut c_char>()),
            PMIX_VALUE => destroy(&mut *element.cast(), deeper),
            PMIX_INFO => destroy_info(&mut *element.cast(), deeper),
            PMIX_BYTE_OBJECT => memory::free((*element.cast::<iof_byte_object_t>()).bytes),
            PMIX_PROC_INFO => destroy_proc_info(&mut *element.cast()),
            PMIX_ENVAR => destroy_envar(&*element.cast()),
            PMIX_REGATTR => {
                let attr = &*element.cast::<iof_regattr_t>();
                memory::free(attr.name);
                memory::free_texts(attr.description);
            }
            PMIX_QUERY => {
                let query = &*element.cast::<iof_query_t>();
                memory::free_texts(query.keys);
                free_infos(query.qualifiers, query.nqual);
            }
            _ => {}
        }
    }
}

unsafe fn destroy_envar(envar: &iof_envar_t) {
    // SAFETY: the module's contract.
    unsafe {
        memory::free(envar.envar);
        memory::free(envar.value);
    }
}

unsafe fn destroy_proc_info(info: &mut iof_proc_info_t) {
    // SAFETY: the module's contract.
    unsafe {
        memory::free(info.hostname);
        memory::free(info.executable_name);
    }
}

unsafe fn destroy_info(info: &mut iof_info_t, depth: usize) {
    if info.flags & PMIX_INFO_PERSISTENT == 0 {
        // SAFETY: the module's contract.
        unsafe { destroy(&mut info.value, depth) };
    }
}

/// Frees an array of infos and their values.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn free_infos(infos: *mut iof_info_t, count: usize) {
    if infos.is_null() || !infos.is_aligned() {
        return;
    }
    for index in 0..count.min(MAX_ELEMENTS) {
        // SAFETY: the module's contract.
        unsafe { destroy_info(&mut *infos.wrapping_add(index), 0) };
    }
    // SAFETY: the module's contract.
    unsafe { memory::free(infos) };
}
