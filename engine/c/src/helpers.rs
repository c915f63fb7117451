//! The functions with which C fills, copies and frees values, infos and processes. They need no
//! initialization.

use std::ffi::{c_char, c_void};
use std::ptr;

use crate::constants::*;
use crate::guard::{Outcome, guard, guard_or};
use crate::types::{
    iof_data_array_t, iof_data_type_t, iof_info_t, iof_proc_t, iof_rank_t, iof_status_t, iof_value_t,
};
use crate::{memory, read, value};

/// Fills a process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Load_procid(
    p: *mut iof_proc_t,
    ns: *const c_char,
    rk: iof_rank_t,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let (place, name) = unsafe { (read::place(p)?, read::text(ns, IOF_MAX_NSLEN)?) };
        *place = iof_proc_t { nspace: memory::nspace(name), rank: rk };
        Ok(IOF_SUCCESS)
    })
}

/// Fills a value with a copy of data, of which the type says what it points to; of IOF_STRING it is
/// the text itself, of IOF_POINTER the value itself, of IOF_BOOL NULL stands for true. What was in
/// the value before is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_load(
    val: *mut iof_value_t,
    data: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        unsafe {
            let place = read::place(val)?;
            *place = value::load(data, r#type)?;
        }
        Ok(IOF_SUCCESS)
    })
}

/// Gives a copy of what a value holds: numbers and flags into what *data points to, others as
/// memory to be freed. *sz is how many bytes it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_unload(
    val: *mut iof_value_t,
    data: *mut *mut c_void,
    sz: *mut usize,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let (val, data, size) = unsafe { (read::one(val)?, read::place(data)?, read::place(sz)?) };
        if let Some(plain) = value::plain_size(val.r#type) {
            if val.r#type == IOF_POINTER {
                // SAFETY: the type says so.
                *data = unsafe { val.data.ptr };
            } else if data.is_null() {
                return Err(IOF_ERR_BAD_PARAM);
            } else {
                // SAFETY: all fields begin where the union does; C says that there is room for one.
                unsafe { ptr::copy_nonoverlapping((&raw const val.data).cast::<u8>(), data.cast(), plain) };
            }
            *size = plain;
            return Ok(IOF_SUCCESS);
        }
        // SAFETY: the header's promise; the type says which field there is, and a copy is C's own.
        unsafe {
            let copy = value::copy(val, 0)?;
            (*data, *size) = match copy.r#type {
                IOF_STRING if copy.data.string.is_null() => return Err(IOF_ERR_NOT_FOUND),
                IOF_STRING => (copy.data.string.cast(), libc::strlen(copy.data.string).saturating_add(1)),
                IOF_BYTE_OBJECT => (copy.data.bo.bytes.cast(), copy.data.bo.size),
                IOF_PROC => (copy.data.proc.cast(), size_of::<iof_proc_t>()),
                IOF_PROC_NSPACE => (copy.data.nspace.cast(), IOF_MAX_NSLEN.saturating_add(1)),
                IOF_DATA_ARRAY => (copy.data.darray.cast(), size_of::<iof_data_array_t>()),
                IOF_PROC_INFO => (copy.data.pinfo.cast(), size_of::<crate::types::iof_proc_info_t>()),
                _ => {
                    let mut copy = copy;
                    value::destroy(&mut copy, 0);
                    return Err(IOF_ERR_UNKNOWN_DATA_TYPE);
                }
            };
        }
        Ok(IOF_SUCCESS)
    })
}

/// Frees what a value points to, not the value itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_destruct(val: *mut iof_value_t) {
    guard_or((), || {
        // SAFETY: the header's promise.
        if let Ok(val) = unsafe { read::place(val) } {
            // SAFETY: the header's promise.
            unsafe { value::destroy(val, 0) };
        }
    });
}

/// Copies a value with all that it points to. What was in dest before is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_xfer(dest: *mut iof_value_t, src: *const iof_value_t) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        unsafe {
            let place = read::place(dest)?;
            *place = value::copy(read::one(src)?, 0)?;
        }
        Ok(IOF_SUCCESS)
    })
}

/// Frees the elements of an array, not the structure itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Data_array_destruct(d: *mut iof_data_array_t) {
    guard_or((), || {
        // SAFETY: the header's promise.
        if let Ok(array) = unsafe { read::place(d) } {
            // SAFETY: the header's promise.
            unsafe { value::destroy_array(array, 0) };
        }
    });
}

/// Fills an info, as iof_Value_load does with its value; it is not required. Frees nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_load(
    info: *mut iof_info_t,
    key: *const c_char,
    data: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        unsafe {
            let place = read::place(info)?;
            place.write_info(key, value::load(data, r#type)?)
        }
    })
}

impl iof_info_t {
    /// # Safety
    /// That of [`read`], for `key`.
    unsafe fn write_info(&mut self, key: *const c_char, mut value: iof_value_t) -> Outcome<iof_status_t> {
        // SAFETY: as promised to us.
        match unsafe { read::text(key, IOF_MAX_KEYLEN) } {
            Ok(key) => {
                *self = iof_info_t { key: memory::key(key), flags: 0, value };
                Ok(IOF_SUCCESS)
            }
            Err(status) => {
                // SAFETY: it was made here.
                unsafe { value::destroy(&mut value, 0) };
                Err(status)
            }
        }
    }
}

/// Says that who can't honour an info is to refuse what it comes with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_required(info: *mut iof_info_t) {
    guard_or((), || {
        // SAFETY: the header's promise.
        if let Ok(info) = unsafe { read::place(info) } {
            info.flags |= IOF_INFO_REQD;
        }
    });
}

/// Frees an array of infos that the library gave, or PMIX_INFO_CREATE, with all their values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_free(info: *mut iof_info_t, ninfo: usize) {
    // SAFETY: the header's promise.
    guard_or((), || unsafe { value::free_infos(info, ninfo) });
}

/// Copies an info with all that its value points to. Frees nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_xfer(dest: *mut iof_info_t, src: *const iof_info_t) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        unsafe {
            let place = read::place(dest)?;
            *place = copied(read::one(src)?)?;
        }
        Ok(IOF_SUCCESS)
    })
}

/// # Safety
/// That of [`value`].
unsafe fn copied(from: &iof_info_t) -> Outcome<iof_info_t> {
    read::key(from)?;
    // SAFETY: as promised to us.
    let value = unsafe { value::copy(&from.value, 0) }?;
    Ok(iof_info_t { flags: from.flags & !IOF_INFO_PERSISTENT, value, ..*from })
}

/// A list of infos that grows. Its mark is looked at before anything else is.
struct List {
    mark: u64,
    infos: Vec<iof_info_t>,
}

const MARK: u64 = 0x696f_665f_6c69_7374;
/// Infos in a list.
const MAX_LISTED: usize = 1 << 16;

/// # Safety
/// `list` is one of ours and was not released, or else eight bytes of memory at least that are
/// none.
unsafe fn list<'a>(list: *mut c_void) -> Outcome<&'a mut List> {
    let list: *mut List = list.cast();
    // SAFETY: as promised to us.
    if list.is_null() || !list.is_aligned() || unsafe { (&raw const (*list).mark).read() } != MARK {
        return Err(IOF_ERR_BAD_PARAM);
    }
    // SAFETY: it is one of ours.
    Ok(unsafe { &mut *list })
}

/// Begins a list of infos, to be used by one thread at a time and given back by
/// iof_Info_list_release.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Info_list_start() -> *mut c_void {
    guard_or(ptr::null_mut(), || Box::into_raw(Box::new(List { mark: MARK, infos: Vec::new() })).cast())
}

/// Adds an info as iof_Info_load makes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_add(
    ptr: *mut c_void,
    key: *const c_char,
    value: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        unsafe {
            let list = list(ptr)?;
            let mut info = iof_info_t { key: [0; 512], flags: 0, value: value::NOTHING };
            info.write_info(key, value::load(value, r#type)?)?;
            list.push(info)
        }
    })
}

/// Adds a copy of an info.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_xfer(ptr: *mut c_void, info: *const iof_info_t) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        unsafe { list(ptr)?.push(copied(read::one(info)?)?) }
    })
}

impl List {
    fn push(&mut self, mut info: iof_info_t) -> Outcome<iof_status_t> {
        if self.infos.len() >= MAX_LISTED {
            // SAFETY: it was made for this list.
            unsafe { value::destroy(&mut info.value, 0) };
            return Err(IOF_ERR_OUT_OF_RESOURCE);
        }
        self.infos.push(info);
        Ok(IOF_SUCCESS)
    }
}

/// Makes an array of copies of what is in a list; IOF_ERR_NOT_FOUND if that is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_convert(ptr: *mut c_void, par: *mut iof_data_array_t) -> iof_status_t {
    guard(|| {
        // SAFETY: the header's promise.
        let (list, place) = unsafe { (list(ptr)?, read::place(par)?) };
        if list.infos.is_empty() {
            return Err(IOF_ERR_NOT_FOUND);
        }
        let array = list.infos.as_mut_ptr().cast();
        let all = iof_data_array_t { r#type: IOF_INFO, size: list.infos.len(), array };
        // SAFETY: it is an array of infos.
        *place = unsafe { value::copy_array(&all, 0) }?;
        Ok(IOF_SUCCESS)
    })
}

/// Frees a list with all that is in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_release(ptr: *mut c_void) {
    guard_or((), || {
        // SAFETY: the header's promise.
        let Ok(list) = (unsafe { list(ptr) }) else { return };
        list.mark = 0;
        // SAFETY: it is one of ours, given back once.
        let mut list = unsafe { Box::from_raw(&raw mut *list) };
        for info in &mut list.infos {
            // SAFETY: what is in a list was made for it.
            unsafe { value::destroy(&mut info.value, 0) };
        }
    });
}
