//! The server of a tool: a process has at most one connection.

use std::sync::Arc;

use iof_proto::Status;

use crate::ffi::guard::{OrStatus, Outcome, guard, guard_or, may_wait};
use crate::ffi::types::{iof_info_t, iof_proc_t, iof_status_t};
use crate::ffi::{memory, read};
use crate::functions::tool::connect;
use crate::infos::Infos;
use crate::infos::init::ToolInfos;
use crate::library::{LibraryState, ToolState, initialized, library};
use crate::session::EngineSession;

/// Returns the session of a tool whose engine has not ended.
fn connected(tool: &ToolState) -> Option<&Arc<EngineSession>> {
    tool.session.as_ref().filter(|session| !session.is_gone())
}

/// Returns the tool of this process.
fn with_tool<T>(body: impl FnOnce(&mut ToolState) -> Outcome<T>) -> Outcome<T> {
    match &mut *library()? {
        LibraryState::Tool(tool) => body(tool),
        _ => Err(Status::ERR_INIT),
    }
}

/// Returns whether the process is a tool that is connected, and whose engine has not ended. Does
/// not block.
#[unsafe(no_mangle)]
pub extern "C" fn iof_tool_is_connected() -> bool {
    guard_or(false, || with_tool(|tool| Ok(connected(tool).is_some())).unwrap_or(false))
}

/// Stores an array with the names of the engines to which the tool is connected, one or none, in
/// *servers, and their number in *nservers. The name of an engine is "iof-engine-" and its pid,
/// with rank 0. The program frees the array with free(3). Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_tool_get_servers(
    servers: *mut *mut iof_proc_t,
    nservers: *mut usize,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let (servers, count) = unsafe { (read::place(servers)?, read::place(nservers)?) };
        (*servers, *count) = (std::ptr::null_mut(), 0);
        let engine = with_tool(|tool| Ok(connected(tool).map(|session| session.engine().clone())))?;
        let Some(engine) = engine else { return Ok(()) };
        (*servers, *count) = (memory::checked(memory::give(&[memory::proc(&engine)]))?, 1);
        Ok(())
    })
}

/// Selects the engine that receives the requests of the tool: the one to which it is connected.
/// Does not block. Errors: IOF_ERR_UNREACH if the tool is not connected to this engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_tool_set_server(
    server: *const iof_proc_t,
    info: *const iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    guard(|| {
        initialized()?;
        // SAFETY: the contract in the header.
        let server = unsafe {
            Infos(read::infos(info, ninfo)?).done()?;
            read::proc(read::one(server)?)?
        };
        let is_ours = with_tool(|tool| Ok(connected(tool).is_some_and(|ours| *ours.engine() == server)))?;
        if is_ours { Ok(()) } else { Err(Status::ERR_UNREACH) }
    })
}

/// Connects a tool that has no connection, because of IOF_TOOL_DO_NOT_CONNECT,
/// IOF_TOOL_CONNECT_OPTIONAL or iof_tool_disconnect, or because its engine has ended. The tool
/// keeps its event handlers and IOF_EXTERNAL_PROGRESS, and registers again for output
/// (iof_IOF_pull); the numbers of registrations begin with 1 again. The infos are those of
/// iof_tool_init that select an engine; at least one must be given. myproc and server, which may be
/// NULL, receive the names of the tool and of the engine. Blocks as iof_tool_init does. Errors:
/// those of iof_tool_init; IOF_ERR_NOT_SUPPORTED if the tool is connected, because a process has
/// one connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_tool_attach_to_server(
    myproc: *mut iof_proc_t,
    server: *mut iof_proc_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    guard(|| {
        may_wait()?;
        initialized()?;
        // SAFETY: the contract in the header.
        let infos = unsafe { read::infos(info, ninfo) }?;
        if infos.is_empty() {
            return Err(Status::ERR_BAD_PARAM);
        }
        let ToolInfos { own_thread, search, .. } = ToolInfos::read(infos)?;
        // The last callbacks of a session whose engine has ended may use the library.
        let ended = with_tool(|tool| Ok(tool.session.clone().filter(|session| session.is_gone())))?;
        ended.map_or(Ok(()), |session| session.end())?;
        let (own, engine) = with_tool(|tool| {
            if let Some(ended) = tool.session.take_if(|session| session.is_gone()) {
                tool.events = std::mem::take(&mut *ended.events());
            }
            if tool.session.is_some() {
                return Err("the tool is connected: call iof_tool_disconnect first")
                    .or_status(Status::ERR_NOT_SUPPORTED);
            }
            let own_thread = own_thread && tool.own_thread;
            let session = connect(&search, tool.proc.to_string(), own_thread, &tool.formats)?;
            *session.events() = std::mem::take(&mut tool.events);
            let engine = session.engine().clone();
            tool.session = Some(Arc::new(session));
            Ok((tool.proc.clone(), engine))
        })?;
        // SAFETY: the contract in the header.
        unsafe {
            read::store(myproc, memory::proc(&own))?;
            read::store(server, memory::proc(&engine))
        }
    })
}

/// Closes the connection to an engine, as the last iof_tool_finalize does. The process remains a
/// tool, and keeps its event handlers. Errors: IOF_ERR_NOT_FOUND if the tool is not connected to
/// this engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_tool_disconnect(server: *const iof_proc_t) -> iof_status_t {
    guard(|| {
        may_wait()?;
        // SAFETY: the contract in the header.
        let server = read::proc(unsafe { read::one(server) }?)?;
        let session = with_tool(|tool| {
            let session = tool.session.take_if(|session| *session.engine() == server);
            let session = session.ok_or(Status::ERR_NOT_FOUND)?;
            tool.events = std::mem::take(&mut *session.events());
            Ok(session)
        })?;
        // Callbacks that run until the session has ended may use the library.
        session.end()
    })
}
