//! Converts what libpmix passes to upcalls into values of Rust.
//!
//! The contract behind every `unsafe` block of this module is that of the server module
//! (`pmix_server.h`): a pointer that is not null points to values of its type, as many as the
//! number beside it specifies, which are readable until the upcall returns. A tool has chosen the
//! values, so that texts, numbers and lengths are checked.

use std::ffi::{CStr, c_char};
use std::slice;
use std::time::Duration;

use iof_proto::limits::{
    MAX_DIRECTIVES, MAX_LOG_ENTRIES, MAX_LOG_TEXT, MAX_PROCS_PER_PULL, MAX_PUBLISHED_BYTES_PER_JOB,
    MAX_PUBLISHED_PER_JOB, MAX_QUERY_KEYS, MAX_TEXT,
};
use iof_proto::log::key::{PMIX_LOG_EMAIL, PMIX_LOG_EMAIL_MSG, PMIX_LOG_SOURCE};
use iof_proto::{
    DataRange, Exchange, FoundValue, Info, InfoValue, JobRanks, Log, LogEntry, LogValue, Nspace, Persistence,
    Proc, Query, Rank, Status,
};

use crate::library::types::{self, ByteObject, kind};

/// The keys of the name and of the rank of a tool.
const NSPACE: &str = "pmix.nspace";
const RANK: &str = "pmix.rank";

/// A value, or the status with which the request is refused.
pub(crate) type Read<T> = Result<T, Status>;

/// Returns `count` values, at most `limit`, that begin at `start`.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn slice<'a, T>(start: *const T, count: usize, limit: usize) -> Read<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() {
        return Err(Status::ERR_BAD_PARAM);
    }
    if count > limit {
        return Err(Status::ERR_OUT_OF_RESOURCE);
    }
    // SAFETY: the pointer is aligned and not null; the rest is the module's contract. All bit
    // patterns are valid for the structures of `types`.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

/// Returns the value at `place`.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn one<'a, T>(place: *const T) -> Read<&'a T> {
    // SAFETY: the module's contract.
    unsafe { slice(place, 1, 1) }?.first().ok_or(Status::ERR_BAD_PARAM)
}

/// Returns a text of at most `limit` bytes with a final zero. It must be UTF-8.
unsafe fn text(start: *const c_char, limit: usize) -> Read<String> {
    if start.is_null() {
        return Err(Status::ERR_BAD_PARAM);
    }
    // SAFETY: the module's contract.
    let bytes = unsafe { CStr::from_ptr(start) }.to_bytes();
    if bytes.len() > limit {
        return Err(Status::ERR_OUT_OF_RESOURCE);
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| Status::ERR_BAD_PARAM)
}

/// Returns the text in an array, which must have its final zero.
pub(crate) fn text_within(array: &[c_char]) -> Read<String> {
    // The signedness of c_char depends on the machine.
    let bytes = array.iter().map(|character| u8::from_ne_bytes(character.to_ne_bytes()));
    let text: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    let text = if text.len() < array.len() { text } else { return Err(Status::ERR_BAD_PARAM) };
    String::from_utf8(text).map_err(|_| Status::ERR_BAD_PARAM)
}

fn proc(proc: &types::RawProc) -> Read<Proc> {
    let nspace = Nspace::new(text_within(&proc.nspace)?).map_err(|_| Status::ERR_BAD_PARAM)?;
    Ok(Proc::new(nspace, Rank(proc.rank)))
}

/// Reads processes.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn procs(start: *const types::RawProc, count: usize) -> Read<Vec<Proc>> {
    // SAFETY: the module's contract.
    unsafe { slice(start, count, MAX_PROCS_PER_PULL) }?.iter().map(proc).collect()
}

/// Reads directives. If the type of a value is not known, a required directive is refused, and an
/// optional one is left out.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn infos(start: *const types::Info, count: usize) -> Read<Vec<Info>> {
    // SAFETY: the module's contract.
    unsafe {
        let all = slice(start, count, MAX_DIRECTIVES)?.iter();
        all.filter_map(|from| info(from, MAX_TEXT).transpose()).collect()
    }
}

/// Reads the name and the rank that a tool has, from the infos of its connection.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn tool_name(start: *const types::Info, count: usize) -> Read<(String, u32)> {
    let (mut name, mut number) = (None, 0);
    // SAFETY: the module's contract.
    let all = unsafe { slice(start, count, MAX_DIRECTIVES)?.iter().map(|from| info(from, MAX_TEXT)) };
    // Those that cannot be read are the tool's.
    for info in all.filter_map(Result::ok).flatten() {
        match (info.key.as_str(), info.value) {
            (NSPACE, InfoValue::Text(text)) => name = Some(text),
            (RANK, InfoValue::Number(rank)) => number = u32::try_from(rank).unwrap_or_default(),
            _ => {}
        }
    }
    name.map(|name| (name, number)).ok_or(Status::ERR_NOT_FOUND)
}

/// Reads an info whose text has at most `limit` bytes. Returns `None` for an optional one of
/// another type.
unsafe fn info(from: &types::Info, limit: usize) -> Read<Option<Info>> {
    let (key, required) = (text_within(&from.key)?, from.flags & types::REQUIRED != 0);
    // A rank may be given as a signed number: -2 is PMIX_RANK_WILDCARD.
    let signed = number(&from.value).filter(|number| *number < 0 && key == RANK);
    if let Some(rank) = signed.and_then(|number| i32::try_from(number).ok()) {
        let value = InfoValue::Number(rank.cast_unsigned().into());
        return Ok(Some(Info { key, value, required }));
    }
    // SAFETY: the module's contract.
    match unsafe { value(&from.value, limit) } {
        Ok(value) => Ok(Some(Info { key, value, required })),
        Err(Status::ERR_NOT_SUPPORTED) if !required => Ok(None),
        Err(status) => Err(status),
    }
}

unsafe fn value(from: &types::Value, limit: usize) -> Read<InfoValue> {
    if let Some(number) = number(from) {
        // No other directive has a negative value.
        return u64::try_from(number).map(InfoValue::Number).map_err(|_| Status::ERR_BAD_PARAM);
    }
    let types::Value { kind, data } = from;
    // SAFETY: the kind specifies the field, by the module's contract.
    unsafe {
        Ok(match *kind {
            // PMIx's macros express a flag without a value in this way.
            kind::PMIX_UNDEF => InfoValue::Bool(true),
            kind::PMIX_BOOL => InfoValue::Bool(data.byte != 0),
            kind::PMIX_STRING => InfoValue::Text(text(data.string, limit)?),
            kind::PMIX_PROC => InfoValue::Proc(proc(one(data.proc)?)?),
            kind::PMIX_PROC_NSPACE => InfoValue::Text(text_within(one(data.nspace)?)?),
            _ => return Err(Status::ERR_NOT_SUPPORTED),
        })
    }
}

/// Returns the number that a value contains, if its kind is one of numbers.
pub(crate) fn number(from: &types::Value) -> Option<i128> {
    let types::Value { kind, data } = from;
    // SAFETY: all of these fields are integers, for which all bit patterns are valid.
    unsafe {
        Some(match *kind {
            kind::PMIX_BYTE | kind::PMIX_UINT8 | kind::PMIX_PERSIST | kind::PMIX_DATA_RANGE => {
                data.byte.into()
            }
            kind::PMIX_SIZE | kind::PMIX_UINT64 => data.uint64.into(),
            kind::PMIX_PID | kind::PMIX_INT | kind::PMIX_INT32 | kind::PMIX_STATUS => data.int32.into(),
            kind::PMIX_INT64 | kind::PMIX_TIME => data.int64.into(),
            kind::PMIX_UINT | kind::PMIX_UINT32 | kind::PMIX_PROC_RANK => data.uint32.into(),
            kind::PMIX_UINT16 | kind::PMIX_IOF_CHANNEL => data.uint16.into(),
            _ => return None,
        })
    }
}

/// The actions of job control, and the signals by which they are carried out.
const ACTIONS: [(&str, i32); 4] = [
    ("pmix.jctrl.pause", libc::SIGSTOP),
    ("pmix.jctrl.resume", libc::SIGCONT),
    ("pmix.jctrl.kill", libc::SIGKILL),
    ("pmix.jctrl.term", libc::SIGTERM),
];
/// The key of a signal to be sent.
const SIGNAL: &str = "pmix.jctrl.sig";
/// The key of the name that a requester has given to its request.
const CONTROL_ID: &str = "pmix.jctrl.id";

/// Reads the signal that carries out a request for job control.
///
/// # Errors
/// `PMIX_ERR_NOT_SUPPORTED` if the request is for anything but one such action.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn control_signal(start: *const types::Info, count: usize) -> Read<i32> {
    // SAFETY: the module's contract.
    let infos = unsafe { infos(start, count) }?;
    let mut signals = Vec::new();
    for Info { key, value, .. } in infos {
        let action = ACTIONS.iter().find(|(action, _)| *action == key);
        match (value, action) {
            (InfoValue::Bool(asked), Some((_, signal))) => signals.extend(asked.then_some(*signal)),
            (InfoValue::Number(signal), _) if key == SIGNAL => {
                signals.push(i32::try_from(signal).map_err(|_| Status::ERR_BAD_PARAM)?);
            }
            _ if key == CONTROL_ID => {}
            _ => return Err(Status::ERR_NOT_SUPPORTED),
        }
    }
    match signals[..] {
        [signal] => Ok(signal),
        _ => Err(Status::ERR_NOT_SUPPORTED),
    }
}

/// Reads queries.
///
/// # Safety
/// The module's contract, also for all that they point to.
pub(crate) unsafe fn queries(start: *const types::RawQuery, count: usize) -> Read<Vec<Query>> {
    // SAFETY: the module's contract.
    unsafe {
        let query = |from: &types::RawQuery| {
            let qualifiers = infos(from.qualifiers, from.qualifier_count)?;
            Ok(Query { keys: keys(from.keys)?, qualifiers })
        };
        slice(start, count, MAX_QUERY_KEYS)?.iter().map(query).collect()
    }
}

/// Reads a list of texts that ends with null.
unsafe fn keys(list: *mut *mut c_char) -> Read<Vec<String>> {
    let mut keys = Vec::new();
    if list.is_null() {
        return Ok(keys);
    }
    loop {
        // SAFETY: no earlier element is null, so the list has this one as well.
        let next = unsafe { *list.wrapping_add(keys.len()) };
        if next.is_null() {
            return Ok(keys);
        }
        if keys.len() >= MAX_QUERY_KEYS {
            return Err(Status::ERR_OUT_OF_RESOURCE);
        }
        // SAFETY: the module's contract.
        keys.push(unsafe { text(next, MAX_TEXT) }?);
    }
}

/// The keys of directives about published values. libpmix adds the last two.
const EXCHANGE: [&str; 6] =
    ["pmix.range", "pmix.persist", "pmix.wait", "pmix.timeout", "pmix.euid", "pmix.egid"];

/// The key of a directive that asks for a number of a group.
const CONTEXT: &str = "pmix.grp.actxid";
/// The keys of directives about groups that a member can require. libpmix carries out the second one.
const GROUP: [&str; 2] = [CONTEXT, "pmix.timeout"];

/// The directives of a request about published values.
pub(crate) struct ExchangeDirectives {
    pub range: DataRange,
    pub persistence: Persistence,
    pub wait: usize,
    pub limit: Option<Duration>,
}

/// Reads directives about published values. Those that are not given are as PMIx defines them.
fn exchange_directives(infos: &[&types::Info]) -> Read<ExchangeDirectives> {
    let (range, persistence) = (DataRange::Session, Persistence::Job);
    let mut read = ExchangeDirectives { range, persistence, wait: 0, limit: None };
    for info in infos {
        let key = text_within(&info.key)?;
        match (key.strip_prefix("pmix.").unwrap_or_default(), number(&info.value)) {
            ("range", Some(0 | 2 | 4 | 5)) => read.range = DataRange::Session,
            ("range", Some(3)) => read.range = DataRange::Job,
            ("range", Some(7)) => read.range = DataRange::Process,
            ("persist", Some(0 | 4)) => read.persistence = Persistence::Session,
            ("persist", Some(1)) => read.persistence = Persistence::FirstRead,
            ("persist", Some(2)) => read.persistence = Persistence::Process,
            ("persist", Some(3)) => read.persistence = Persistence::Job,
            // A flag, or 0: wait for all values.
            ("wait", None | Some(0)) => read.wait = usize::MAX,
            ("wait", Some(count)) => read.wait = count.try_into().map_err(|_| Status::ERR_BAD_PARAM)?,
            ("timeout", Some(0)) => read.limit = None,
            ("timeout", Some(seconds)) => {
                let seconds = seconds.try_into().map_err(|_| Status::ERR_BAD_PARAM)?;
                read.limit = Some(Duration::from_secs(seconds));
            }
            // For the resource manager, or for listed processes.
            ("range", Some(1 | 6)) => return Err(Status::ERR_NOT_SUPPORTED),
            ("range" | "persist" | "timeout", _) => return Err(Status::ERR_BAD_PARAM),
            _ if info.flags & types::REQUIRED != 0 && !EXCHANGE.contains(&&*key) => {
                return Err(Status::ERR_NOT_SUPPORTED);
            }
            _ => {}
        }
    }
    Ok(read)
}

/// Reads values to be published by a rank, among their directives.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn publish(
    source: *const types::RawProc,
    start: *const types::Info,
    count: usize,
) -> Read<Exchange> {
    // SAFETY: the module's contract.
    let (source, infos) = unsafe { (proc(one(source)?)?, slice(start, count, MAX_PUBLISHED_PER_JOB)?) };
    let is_directive =
        |info: &&types::Info| text_within(&info.key).is_ok_and(|key| EXCHANGE.contains(&&*key));
    let (directives, data): (Vec<_>, Vec<_>) = infos.iter().partition(is_directive);
    let ExchangeDirectives { range, persistence, .. } = exchange_directives(&directives)?;
    // SAFETY: the module's contract.
    let value = |info: &types::Info| unsafe { published(&source, info) };
    let values = data.into_iter().map(value).collect::<Read<Vec<FoundValue>>>()?;
    Ok(Exchange::Publish { values, range, persistence })
}

/// Reads the keys of values, and directives about them.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn exchange(
    list: *mut *mut c_char,
    start: *const types::Info,
    count: usize,
) -> Read<(Vec<String>, ExchangeDirectives)> {
    // SAFETY: the module's contract.
    let (keys, infos) = unsafe { (keys(list)?, slice(start, count, MAX_DIRECTIVES)?) };
    Ok((keys, exchange_directives(&infos.iter().collect::<Vec<_>>())?))
}

/// Reads a request to construct or destruct a group.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn group(
    constructs: bool,
    (name, members): (*const c_char, Vec<JobRanks>),
    start: *const types::Info,
    count: usize,
) -> Read<Exchange> {
    // SAFETY: the module's contract.
    let (name, infos) = unsafe { (text(name, MAX_TEXT)?, slice(start, count, MAX_DIRECTIVES)?) };
    let is_set = |info: &types::Info| {
        // SAFETY: the type specifies the field.
        info.value.kind != kind::PMIX_BOOL || unsafe { info.value.data.byte } != 0
    };
    let is_one_of =
        |info: &types::Info, keys: &[&str]| text_within(&info.key).is_ok_and(|key| keys.contains(&&*key));
    // libpmix answers to some members only, or twice, if a destruction is refused.
    let is_unknown =
        |info: &types::Info| info.flags & types::REQUIRED != 0 && is_set(info) && !is_one_of(info, &GROUP);
    if constructs && infos.iter().any(is_unknown) {
        return Err(Status::ERR_NOT_SUPPORTED);
    }
    let asks = |info: &types::Info| is_one_of(info, &[CONTEXT]) && is_set(info);
    Ok(Exchange::Group { name, members, constructs, with_context: infos.iter().any(asks) })
}

/// Reads a value to be published.
unsafe fn published(source: &Proc, info: &types::Info) -> Read<FoundValue> {
    let types::Value { kind, data } = info.value;
    // SAFETY: the kind specifies the field. All fields of numbers lie in the first eight bytes.
    let bytes = unsafe {
        match kind {
            kind::PMIX_STRING => text(data.string, MAX_PUBLISHED_BYTES_PER_JOB)?.into_bytes(),
            kind::PMIX_BYTE_OBJECT => {
                let ByteObject { bytes, size } = data.bytes;
                slice(bytes.cast_const().cast::<u8>(), size, MAX_PUBLISHED_BYTES_PER_JOB)?.to_vec()
            }
            kind::PMIX_BOOL..=kind::PMIX_DOUBLE
            | kind::PMIX_TIME
            | kind::PMIX_STATUS
            | kind::PMIX_PROC_RANK => data.uint64.to_ne_bytes().to_vec(),
            _ => return Err(Status::ERR_NOT_SUPPORTED),
        }
    };
    Ok(FoundValue { source: source.clone(), key: text_within(&info.key)?, kind, bytes })
}

/// Reads the data of a log request.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn log_entries(start: *const types::Info, count: usize) -> Read<Vec<LogEntry>> {
    let entry = |from: &types::Info| {
        let (channel, required) = (text_within(&from.key)?, from.flags & types::REQUIRED != 0);
        // SAFETY: the kind specifies the field; the rest is the module's contract.
        let value = unsafe {
            if channel == PMIX_LOG_EMAIL && from.value.kind == kind::PMIX_DATA_ARRAY {
                LogValue::Email(email(one(from.value.data.array)?)?)
            } else {
                match value(&from.value, MAX_LOG_TEXT)? {
                    InfoValue::Text(text) if channel == PMIX_LOG_EMAIL => {
                        LogValue::Email(vec![Info::new(PMIX_LOG_EMAIL_MSG, InfoValue::Text(text))])
                    }
                    InfoValue::Text(text) => LogValue::Text(text),
                    _ => return Err(Status::ERR_BAD_PARAM),
                }
            }
        };
        Ok(LogEntry { channel, value, required })
    };
    // SAFETY: the module's contract.
    unsafe { slice(start, count, MAX_LOG_ENTRIES) }?.iter().map(entry).collect()
}

/// Reads a message to be logged.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn log(
    client: *const types::RawProc,
    entries: (*const types::Info, usize),
    directives: (*const types::Info, usize),
) -> Read<Log> {
    // SAFETY: the contract.
    let (client, data, mut directives) = unsafe {
        (procs(client, 1)?, log_entries(entries.0, entries.1)?, infos(directives.0, directives.1)?)
    };
    // libpmix names the client as the source. The engine does not know it by this name.
    directives.retain(|directive| match &directive.value {
        InfoValue::Proc(source) => directive.key != PMIX_LOG_SOURCE || !client.contains(source),
        _ => true,
    });
    Ok(Log { data, directives })
}

/// Reads the fields of an email.
unsafe fn email(array: &types::DataArray) -> Read<Vec<Info>> {
    if array.kind != kind::PMIX_INFO {
        return Err(Status::ERR_BAD_PARAM);
    }
    // SAFETY: the kind specifies the elements.
    unsafe {
        let fields = slice::<types::Info>(array.array.cast(), array.size, MAX_DIRECTIVES)?.iter();
        fields.filter_map(|field| info(field, MAX_LOG_TEXT).transpose()).collect()
    }
}
