//! The functions of the C library under PMIx's own names, for tools that are compiled against the
//! system's `pmix.h`. Such a tool works unchanged with an engine of iof if it is linked with
//! `libiof-pmix.so` instead of `libpmix.so`, or if `libiof-pmix.so` is preloaded.
//!
//! Structures and constants are identical, so each function forwards to the function of the same
//! name with the prefix `iof_`. The other functions of PMIx's tool API exist, too, and report that
//! they are not supported. `include/iof_pmix.h` lists both kinds.
#![allow(non_snake_case, reason = "the names are PMIx's")]
#![allow(clippy::missing_safety_doc, reason = "iof.h documents the contracts")]

use std::ffi::{c_char, c_int, c_void};

use iof_c::*;

/// Forwards to [`iof_tool_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_tool_init(
    proc: *mut iof_proc_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_tool_init(proc, info, ninfo) }
}

/// Forwards to [`iof_tool_finalize`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_tool_finalize() -> iof_status_t {
    iof_tool_finalize()
}

/// Forwards to [`iof_Initialized`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Initialized() -> c_int {
    iof_Initialized()
}

/// Forwards to [`iof_IOF_pull`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_IOF_pull(
    procs: *const iof_proc_t,
    nprocs: usize,
    directives: *const iof_info_t,
    ndirs: usize,
    channel: iof_iof_channel_t,
    cbfunc: iof_iof_cbfunc_t,
    regcbfunc: iof_hdlr_reg_cbfunc_t,
    regcbdata: *mut c_void,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_IOF_pull(procs, nprocs, directives, ndirs, channel, cbfunc, regcbfunc, regcbdata) }
}

/// Forwards to [`iof_IOF_deregister`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_IOF_deregister(
    iofhdlr: usize,
    directives: *const iof_info_t,
    ndirs: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_IOF_deregister(iofhdlr, directives, ndirs, cbfunc, cbdata) }
}

/// Forwards to [`iof_IOF_push`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_IOF_push(
    targets: *const iof_proc_t,
    ntargets: usize,
    bo: *mut iof_byte_object_t,
    directives: *const iof_info_t,
    ndirs: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_IOF_push(targets, ntargets, bo, directives, ndirs, cbfunc, cbdata) }
}

/// Forwards to [`iof_Query_info`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Query_info(
    queries: *mut iof_query_t,
    nqueries: usize,
    results: *mut *mut iof_info_t,
    nresults: *mut usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Query_info(queries, nqueries, results, nresults) }
}

/// Forwards to [`iof_Query_info_nb`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Query_info_nb(
    queries: *mut iof_query_t,
    nqueries: usize,
    cbfunc: iof_info_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Query_info_nb(queries, nqueries, cbfunc, cbdata) }
}

/// Forwards to [`iof_Log`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Log(
    data: *const iof_info_t,
    ndata: usize,
    directives: *const iof_info_t,
    ndirs: usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Log(data, ndata, directives, ndirs) }
}

/// Forwards to [`iof_Log_nb`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Log_nb(
    data: *const iof_info_t,
    ndata: usize,
    directives: *const iof_info_t,
    ndirs: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Log_nb(data, ndata, directives, ndirs, cbfunc, cbdata) }
}

/// Forwards to [`iof_Register_event_handler`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Register_event_handler(
    codes: *mut iof_status_t,
    ncodes: usize,
    info: *mut iof_info_t,
    ninfo: usize,
    evhdlr: iof_notification_fn_t,
    cbfunc: iof_hdlr_reg_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Register_event_handler(codes, ncodes, info, ninfo, evhdlr, cbfunc, cbdata) }
}

/// Forwards to [`iof_Deregister_event_handler`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Deregister_event_handler(
    evhdlr_ref: usize,
    cbfunc: iof_op_cbfunc_t,
    cbdata: *mut c_void,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Deregister_event_handler(evhdlr_ref, cbfunc, cbdata) }
}

/// Forwards to [`iof_Progress`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Progress() {
    iof_Progress()
}

/// Forwards to [`iof_Get_version`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Get_version() -> *const c_char {
    iof_Get_version()
}

/// Forwards to [`iof_Error_string`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Error_string(status: iof_status_t) -> *const c_char {
    iof_Error_string(status)
}

/// Forwards to [`iof_IOF_channel_string`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_IOF_channel_string(channel: iof_iof_channel_t) -> *const c_char {
    iof_IOF_channel_string(channel)
}

/// Forwards to [`iof_Proc_state_string`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Proc_state_string(state: iof_proc_state_t) -> *const c_char {
    iof_Proc_state_string(state)
}

/// Forwards to [`iof_Data_type_string`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Data_type_string(r#type: iof_data_type_t) -> *const c_char {
    iof_Data_type_string(r#type)
}

/// Forwards to [`iof_Value_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Value_load(
    val: *mut iof_value_t,
    data: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Value_load(val, data, r#type) }
}

/// Forwards to [`iof_Value_unload`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Value_unload(
    val: *mut iof_value_t,
    data: *mut *mut c_void,
    sz: *mut usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Value_unload(val, data, sz) }
}

/// Forwards to [`iof_Value_destruct`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Value_destruct(val: *mut iof_value_t) {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Value_destruct(val) }
}

/// Forwards to [`iof_Value_xfer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Value_xfer(dest: *mut iof_value_t, src: *const iof_value_t) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Value_xfer(dest, src) }
}

/// Forwards to [`iof_Data_array_destruct`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Data_array_destruct(d: *mut iof_data_array_t) {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Data_array_destruct(d) }
}

/// Forwards to [`iof_Info_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Info_load(
    info: *mut iof_info_t,
    key: *const c_char,
    data: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Info_load(info, key, data, r#type) }
}

/// Forwards to [`iof_Info_xfer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Info_xfer(dest: *mut iof_info_t, src: *const iof_info_t) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Info_xfer(dest, src) }
}

/// Forwards to [`iof_Info_list_start`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Info_list_start() -> *mut c_void {
    iof_Info_list_start()
}

/// Forwards to [`iof_Info_list_add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Info_list_add(
    ptr: *mut c_void,
    key: *const c_char,
    value: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Info_list_add(ptr, key, value, r#type) }
}

/// Forwards to [`iof_Info_list_xfer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Info_list_xfer(ptr: *mut c_void, info: *const iof_info_t) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Info_list_xfer(ptr, info) }
}

/// Forwards to [`iof_Info_list_convert`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Info_list_convert(
    ptr: *mut c_void,
    par: *mut iof_data_array_t,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Info_list_convert(ptr, par) }
}

/// Forwards to [`iof_Info_list_release`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Info_list_release(ptr: *mut c_void) {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Info_list_release(ptr) }
}

/// Forwards to [`iof_Info_list_xfer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Info_list_insert(ptr: *mut c_void, info: *mut iof_info_t) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Info_list_xfer(ptr, info) }
}

/// Forwards to [`iof_Scope_string`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Scope_string(scope: u8) -> *const c_char {
    iof_Scope_string(scope)
}

/// Forwards to [`iof_Persistence_string`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Persistence_string(persist: u8) -> *const c_char {
    iof_Persistence_string(persist)
}

/// Forwards to [`iof_Data_range_string`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Data_range_string(range: u8) -> *const c_char {
    iof_Data_range_string(range)
}

/// Forwards to [`iof_Info_directives_string`].
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Info_directives_string(directives: iof_info_directives_t) -> *mut c_char {
    iof_Info_directives_string(directives)
}

/// Forwards to [`iof_Value_string`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Value_string(val: *const iof_value_t) -> *mut c_char {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Value_string(val) }
}

/// Forwards to [`iof_Info_string`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Info_string(info: *const iof_info_t) -> *mut c_char {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Info_string(info) }
}

/// Forwards to [`iof_Get_attribute_string`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Get_attribute_string(attribute: *const c_char) -> *const c_char {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Get_attribute_string(attribute) }
}

/// Forwards to [`iof_Get_attribute_name`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Get_attribute_name(attrstring: *const c_char) -> *const c_char {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_Get_attribute_name(attrstring) }
}

/// Forwards to [`iof_tool_get_servers`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_tool_get_servers(
    servers: *mut *mut iof_proc_t,
    nservers: *mut usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_tool_get_servers(servers, nservers) }
}

/// Forwards to [`iof_tool_set_server`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_tool_set_server(
    server: *const iof_proc_t,
    info: *const iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_tool_set_server(server, info, ninfo) }
}

/// Forwards to [`iof_tool_attach_to_server`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_tool_attach_to_server(
    myproc: *mut iof_proc_t,
    server: *mut iof_proc_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_tool_attach_to_server(myproc, server, info, ninfo) }
}

/// Forwards to [`iof_tool_disconnect`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_tool_disconnect(server: *const iof_proc_t) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_tool_disconnect(server) }
}

/// Forwards to [`iof_tool_attach_to_server`], whose form it has without the name of the server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_tool_connect_to_server(
    proc: *mut iof_proc_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_tool_attach_to_server(proc, std::ptr::null_mut(), info, ninfo) }
}

mod client;
mod unsupported;
