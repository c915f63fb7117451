//! The attributes of output that the C library writes itself.
//!
//! In Rust, the crate `iof-output` and the fields of its `Choice` take their place.

attributes! {
    /// Tags each line with the job and the rank, in PMIx's form.
    ///
    /// Output that the library writes (bool): tags each line with the part of the job's name after
    /// "@", or all of it, and the rank, such as `[1,0]<stdout>: `.
    PMIX_IOF_TAG_OUTPUT = "pmix.iof.tag": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Tags each line with the job, the rank, the host and the pid.
    ///
    /// Output that the library writes (bool): tags each line like IOF_IOF_TAG_OUTPUT, and with the
    /// host and the pid of the process, such as `[1,0][node1:4711]<stdout>: `.
    PMIX_IOF_TAG_DETAILED_OUTPUT = "pmix.iof.tagdet": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Tags each line with the whole name of the job and the rank.
    ///
    /// Output that the library writes (bool): tags each line with the whole name of the job and the
    /// rank, such as `[launcher@1,0]<stdout>: `.
    PMIX_IOF_TAG_FULLNAME_OUTPUT = "pmix.iof.tagfull": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Tags each line with the rank.
    ///
    /// Output that the library writes (bool): tags each line with the rank, such as `[0]<stdout>:
    /// `. If several tags are requested, IOF_IOF_TAG_OUTPUT applies, otherwise the most detailed
    /// one.
    PMIX_IOF_RANK_OUTPUT = "pmix.iof.rank": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Shows the time at which each line was read from its process.
    ///
    /// Output that the library writes (bool): shows the time at which each line was read from its
    /// process, in the form of ctime(3) in brackets before the tag.
    PMIX_IOF_TIMESTAMP_OUTPUT = "pmix.iof.ts": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Writes each line as an XML element.
    ///
    /// Output that the library writes (bool): writes each line as an XML element, such as `<stdout
    /// rank="0">text&#010;</stdout>`. Tags and times are its attributes.
    PMIX_IOF_XML_OUTPUT = "pmix.iof.xml": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Writes stderr and stddiag to stdout. For a program of a job: gives each rank one pipe for
    /// stdout and stderr.
    ///
    /// Output that the library writes (bool): stderr and stddiag go to stdout. For a program of
    /// iof_server_spawn (bool): stdout and stderr of a rank are one pipe, whose bytes arrive as
    /// stdout in the order in which they were written.
    PMIX_IOF_MERGE_STDERR_STDOUT = "pmix.iof.mrg": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull Program;
    /// Writes parts of lines at once, without waiting for the ends of the lines.
    ///
    /// Output that the library writes (bool): parts of lines are written at once. Otherwise a part
    /// waits for the end of its line for 100 ms, or until it has 64 KiB.
    PMIX_IOF_OUTPUT_RAW = "pmix.iof.raw": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Writes the output of each rank to files with this name, followed by the job, the rank and
    /// "out" or "err".
    ///
    /// Output that the library writes (string): goes to the files NAME.JOB.RANK.out and
    /// NAME.JOB.RANK.err, where NAME is this text, and RANK has as many digits as the number of
    /// ranks. stddiag goes to the file of stderr. Existing files are emptied. A relative name is
    /// below the working directory at the call. Channels that IOF_FWD_STDOUT and the like of a job
    /// leave out have empty files.
    PMIX_IOF_OUTPUT_TO_FILE = "pmix.iof.file": Text, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Writes the output of each rank to files in this directory, below the job and the rank.
    ///
    /// Output that the library writes (string): goes to the files DIRECTORY/JOB/rank.RANK/stdout
    /// and DIRECTORY/JOB/rank.RANK/stderr, where DIRECTORY is this text. Cannot be combined with
    /// IOF_IOF_OUTPUT_TO_FILE.
    PMIX_IOF_OUTPUT_TO_DIRECTORY = "pmix.iof.dir": Text, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// The name of the files is a pattern with placeholders.
    ///
    /// Output that the library writes (bool): the text of IOF_IOF_OUTPUT_TO_FILE is a pattern, in
    /// which %n is the job, %r the rank with leading zeros, %R the rank, %h the host and %% a
    /// percent sign. Nothing is added to a name with placeholders.
    PMIX_IOF_FILE_PATTERN = "pmix.iof.fpt": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// If false, output that goes to files goes to stdout and stderr as well. True by default.
    ///
    /// Output that the library writes (bool): if false, output that goes to files goes to stdout
    /// and stderr as well. True by default.
    PMIX_IOF_FILE_ONLY = "pmix.iof.fonly": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// Writes output to the program's own stdout and stderr. By default the output of registrations
    /// without a callback goes there, and that of jobs does not.
    ///
    /// Output that the library writes (bool): whether it goes to the program's own stdout and
    /// stderr. For iof_tool_init and iof_IOF_pull it is true by default. For iof_server_init,
    /// iof_server_spawn, iof_server_adopt and iof_Spawn it is false by default, and if it is true, the
    /// library writes the output of the jobs although the program has not called iof_IOF_pull.
    PMIX_IOF_LOCAL_OUTPUT = "pmix.iof.local": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// The older name of `PMIX_IOF_TAG_OUTPUT`.
    ///
    /// Output that the library writes (bool): the older name of IOF_IOF_TAG_OUTPUT.
    PMIX_TAG_OUTPUT = "pmix.tagout": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// The older name of `PMIX_IOF_TIMESTAMP_OUTPUT`.
    ///
    /// Output that the library writes (bool): the older name of IOF_IOF_TIMESTAMP_OUTPUT.
    PMIX_TIMESTAMP_OUTPUT = "pmix.tsout": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// The older name of `PMIX_IOF_MERGE_STDERR_STDOUT`, except for a program of a job.
    ///
    /// Output that the library writes (bool): the older name of IOF_IOF_MERGE_STDERR_STDOUT.
    PMIX_MERGE_STDERR_STDOUT = "pmix.mergeerrout": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// The older name of `PMIX_IOF_OUTPUT_TO_FILE`.
    ///
    /// Output that the library writes (string): the older name of IOF_IOF_OUTPUT_TO_FILE.
    PMIX_OUTPUT_TO_FILE = "pmix.outfile": Text, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// The older name of `PMIX_IOF_OUTPUT_TO_DIRECTORY`.
    ///
    /// Output that the library writes (string): the older name of IOF_IOF_OUTPUT_TO_DIRECTORY.
    PMIX_OUTPUT_TO_DIRECTORY = "pmix.outdir": Text, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
    /// The older name of `PMIX_IOF_FILE_ONLY`.
    ///
    /// Output that the library writes (bool): the older name of IOF_IOF_FILE_ONLY.
    PMIX_OUTPUT_NOCOPY = "pmix.nocopy": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt ToolSpawn LibraryPull;
}
