//! The answer to queries, as infos.

use std::ffi::CString;

use iof_proto::attribute;
use iof_proto::attribute::library::{
    IOF_CACHED, IOF_CHANNEL, IOF_DROPPED, IOF_GENERATION, IOF_LOGGED, IOF_PRODUCED, IOF_READERS,
    PMIX_CMD_LINE, PMIX_EXIT_CODE,
};
use iof_proto::directive::key::PMIX_IOF_COMPLETE;
use iof_proto::query::key::{
    IOF_QUERY_STATS, PMIX_JOB_SIZE, PMIX_LOCAL_PROCS, PMIX_NSPACE, PMIX_PROCID, PMIX_QUERY_GROUP_NAMES,
    PMIX_QUERY_JOB_STATUS, PMIX_QUERY_NAMESPACE_INFO, PMIX_QUERY_NUM_PSETS,
};
use iof_proto::{
    Answer, Attributes, Channels, Found, FoundValue, InfoValue, JobInfo, PMIX_GROUP_CONTEXT_ID, Proc,
    ProcInfo, StreamStats,
};

use crate::library::info::{Info, ProcTableLine, SupportedAttribute, Value, c_string, characters};
use crate::library::types::{self, ByteObject, RawPublished, kind};

/// Returns one info for each key that was found.
pub(crate) fn infos(answer: &Answer) -> Vec<Info> {
    answer.found.iter().map(|Found { key, value, .. }| Info::new(key.clone(), found(key, value))).collect()
}

/// Returns the name of a process in C.
pub(crate) fn proc(proc: &Proc) -> types::RawProc {
    types::RawProc { nspace: characters(proc.nspace.as_str()), rank: proc.rank.0 }
}

/// Converts infos.
pub(crate) fn from_infos(infos: &[iof_proto::Info]) -> Vec<Info> {
    let value = |value: &InfoValue| match value {
        InfoValue::Bool(flag) => Value::Flag(*flag),
        InfoValue::Number(number) => u32::try_from(*number).map_or(Value::Uint64(*number), Value::Uint32),
        InfoValue::Text(text) => Value::Text(c_string(text)),
        InfoValue::Proc(named) => Value::Proc(Box::new(proc(named))),
    };
    infos.iter().map(|info| Info::new(info.key.clone(), value(&info.value))).collect()
}

/// Converts values that were found. They point to the texts.
pub(crate) fn published(found: &[FoundValue]) -> (Vec<RawPublished>, Vec<Vec<u8>>) {
    let mut texts: Vec<Vec<u8>> = found.iter().map(|row| [&*row.bytes, &[0]].concat()).collect();
    let row = |(FoundValue { source, key, kind, bytes }, text): (&FoundValue, &mut Vec<u8>)| {
        let mut data = types::Data { all: [0; 3] };
        match *kind {
            kind::PMIX_STRING => data.string = text.as_mut_ptr().cast(),
            kind::PMIX_BYTE_OBJECT => {
                data.bytes = ByteObject { bytes: text.as_mut_ptr().cast(), size: bytes.len() };
            }
            _ => data.uint64 = u64::from_ne_bytes(bytes.as_slice().try_into().unwrap_or_default()),
        }
        let value = types::Value { kind: *kind, data };
        RawPublished { proc: proc(source), key: characters(key), value }
    };
    (found.iter().zip(&mut texts).map(row).collect(), texts)
}

fn found(key: &str, value: &iof_proto::Value) -> Value {
    match value {
        iof_proto::Value::Text(names) if key == PMIX_QUERY_GROUP_NAMES => {
            Value::Texts(names.split(',').filter(|name| !name.is_empty()).map(c_string).collect())
        }
        iof_proto::Value::Text(text) => Value::Text(c_string(text)),
        iof_proto::Value::Status(status) => Value::Status(status.0),
        iof_proto::Value::Procs(all) if key == PMIX_LOCAL_PROCS => {
            Value::Procs(all.iter().map(|info| proc(&info.proc)).collect())
        }
        iof_proto::Value::Jobs(all) if key == PMIX_QUERY_JOB_STATUS => {
            let status =
                |job: &JobInfo| Info::new(job.nspace.as_str().to_owned(), Value::Status(job.status.0));
            Value::Infos(all.iter().map(status).collect())
        }
        iof_proto::Value::Procs(all) => Value::Processes(all.iter().map(process).collect()),
        iof_proto::Value::Streams(all) => Value::Infos(all.iter().map(stream).collect()),
        iof_proto::Value::Jobs(all) => Value::Infos(all.iter().map(job).collect()),
        iof_proto::Value::Attributes(all) => Value::Infos(all.iter().map(attributes).collect()),
        // A value of another type.
        iof_proto::Value::Infos(all) => match &from_infos(all)[..] {
            [Info { key: only, value: Value::Uint32(number) }]
                if only == key && [PMIX_QUERY_NUM_PSETS, PMIX_GROUP_CONTEXT_ID].contains(&key) =>
            {
                Value::Size(*number as usize)
            }
            [only] if only.key == key => only.value.clone(),
            all => Value::Infos(all.to_vec()),
        },
    }
}

fn process(from: &ProcInfo) -> ProcTableLine {
    let known = |text: &str| -> Option<CString> { (!text.is_empty()).then(|| c_string(text)) };
    ProcTableLine {
        proc: proc(&from.proc),
        host: known(&from.host),
        executable: known(&from.executable),
        pid: from.pid.cast_signed(),
        exit_code: from.exit_code.unwrap_or(0),
        state: from.state.code(),
    }
}

fn job(from: &JobInfo) -> Info {
    let mut fields = vec![
        Info::text(PMIX_NSPACE, from.nspace.as_str()),
        Info::number(PMIX_JOB_SIZE, from.procs),
        Info::new(PMIX_QUERY_JOB_STATUS, Value::Status(from.status.0)),
        Info::text(PMIX_CMD_LINE, &from.command),
    ];
    fields.extend(from.exit_code.map(|code| Info::new(PMIX_EXIT_CODE, Value::Int(code))));
    Info::new(PMIX_QUERY_NAMESPACE_INFO, Value::Infos(fields))
}

fn stream(from: &StreamStats) -> Info {
    let fields = vec![
        Info::new(PMIX_PROCID, Value::Proc(Box::new(proc(&from.source)))),
        Info::new(IOF_CHANNEL, Value::Channel(Channels::from(from.channel).bits())),
        Info::new(IOF_LOGGED, Value::Flag(from.logged)),
        Info::new(IOF_PRODUCED, Value::Uint64(from.produced)),
        Info::new(IOF_CACHED, Value::Uint64(from.cached)),
        Info::new(IOF_DROPPED, Value::Uint64(from.dropped)),
        Info::new(IOF_GENERATION, Value::Uint64(from.generation)),
        Info::number(IOF_READERS, from.readers.len().try_into().unwrap_or(u32::MAX)),
        Info::new(PMIX_IOF_COMPLETE, Value::Flag(from.complete)),
    ];
    Info::new(IOF_QUERY_STATS, Value::Infos(fields))
}

fn attributes(from: &Attributes) -> Info {
    let attribute = |key: &String| {
        // The host may have attributes that the table lacks.
        let row = attribute::find(key);
        SupportedAttribute {
            name: c_string(row.map_or(key, |row| row.name)),
            key: key.clone(),
            kind: row.map_or(kind::PMIX_UNDEF, attribute::Attribute::data_type),
            description: c_string(&row.map(attribute::Attribute::text).unwrap_or_default()),
        }
    };
    Info::new(from.function.clone(), Value::Attributes(from.keys.iter().map(attribute).collect()))
}
