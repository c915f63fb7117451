//! The functions of PMIx's tool API that this library does not support. They exist, so that no
//! symbol is missing. Like PMIx's library, those that need a server return [`Status::ERR_INIT`] in a
//! process that has not initialized the library, and [`Status::ERR_UNREACH`] in one without a
//! connection. `iof_last_error` returns the reason why they are not supported.
//!
//! They take no arguments. The C calling conventions of all platforms of Linux allow a caller to
//! pass more arguments than a function takes.

use std::ffi::{c_char, c_int};

use iof_c::{fail, iof_Initialized, iof_server_uri, iof_status_t, iof_tool_is_connected};
use iof_proto::Status;

/// Defines functions that return a value.
macro_rules! functions {
    ($result:ty = $value:expr; $($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $result {
                $value
            }
        )+
    };
}

/// Returns the status of a function that needs a server.
fn of_server() -> Status {
    match iof_Initialized() {
        0 => Status::ERR_INIT,
        _ if iof_tool_is_connected() || !iof_server_uri().is_null() => Status::ERR_NOT_SUPPORTED,
        _ => Status::ERR_UNREACH,
    }
}

functions! {
    iof_status_t = fail(of_server(), "ranks use it by PMIx's own library, which speaks the protocol of values and groups").0;
    PMIx_Connect
    PMIx_Connect_nb
    PMIx_Disconnect
    PMIx_Disconnect_nb
    PMIx_Group_construct
    PMIx_Group_construct_nb
    PMIx_Group_destruct
    PMIx_Group_destruct_nb
    PMIx_Group_invite
    PMIx_Group_invite_nb
    PMIx_Group_join
    PMIx_Group_join_nb
    PMIx_Group_leave
    PMIx_Group_leave_nb
    PMIx_Lookup
    PMIx_Lookup_nb
    PMIx_Publish
    PMIx_Publish_nb
    PMIx_Resolve_nodes
    PMIx_Resolve_peers
    PMIx_Store_internal
    PMIx_Unpublish
    PMIx_Unpublish_nb
}

functions! {
    iof_status_t = fail(of_server(), "this library signals no processes: use iof kill, or PMIx's own library for Abort and Job_control").0;
    PMIx_Abort
    PMIx_Allocation_request
    PMIx_Allocation_request_nb
    PMIx_Job_control
    PMIx_Job_control_nb
    PMIx_Process_monitor
    PMIx_Process_monitor_nb
}

functions! {
    iof_status_t = fail(of_server(), "the engine reports the ends of jobs to tools, and passes on no events of tools").0;
    PMIx_Notify_event
}

functions! {
    iof_status_t = fail(of_server(), "the engine identifies tools by what the kernel reports").0;
    PMIx_Get_credential
    PMIx_Get_credential_nb
    PMIx_Validate_credential
    PMIx_Validate_credential_nb
}

functions! {
    iof_status_t = fail(Status::ERR_NOT_SUPPORTED, "the library has no packed data").0;
    PMIx_Data_copy
    PMIx_Data_copy_payload
    PMIx_Data_embed
    PMIx_Data_load
    PMIx_Data_pack
    PMIx_Data_print
    PMIx_Data_unload
    PMIx_Data_unpack
}

functions! {
    iof_status_t = fail(of_server(), "the library has no fabrics and topologies").0;
    PMIx_Compute_distances
    PMIx_Compute_distances_nb
    PMIx_Fabric_deregister
    PMIx_Fabric_deregister_nb
    PMIx_Fabric_register
    PMIx_Fabric_register_nb
    PMIx_Fabric_update
    PMIx_Fabric_update_nb
    PMIx_Get_cpuset
    PMIx_Get_relative_locality
    PMIx_Load_topology
    PMIx_Parse_cpuset_string
}

// The caller does not free these strings.
functions! {
    *const c_char = c"NOT SUPPORTED".as_ptr();
    PMIx_Alloc_directive_string
    PMIx_Device_type_string
    PMIx_Job_state_string
    PMIx_Link_state_string
    PMIx_Value_comparison_string
}

// No function of this library constructs a topology or a set of CPUs.
functions! {
    () = ();
    PMIx_Topology_destruct
    PMIx_Cpuset_destruct
}

// The data was not compressed or decompressed.
functions! {
    bool = false;
    PMIx_Data_compress
    PMIx_Data_decompress
}

// PMIX_VALUE_COMPARISON_NOT_AVAIL
functions! {
    c_int = 5;
    PMIx_Value_compare
}
