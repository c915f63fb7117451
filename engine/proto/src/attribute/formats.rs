//! The attributes of output that the C library writes itself.
//!
//! In Rust, the crate `iof-output` and the fields of its `Choice` take their place.

attributes! {
    /// Tags each line with the job and the rank, in PMIx's form.
    PMIX_IOF_TAG_OUTPUT = "pmix.iof.tag": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Tags each line with the job, the rank, the host and the pid.
    PMIX_IOF_TAG_DETAILED_OUTPUT = "pmix.iof.tagdet": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Tags each line with the whole name of the job and the rank.
    PMIX_IOF_TAG_FULLNAME_OUTPUT = "pmix.iof.tagfull": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Tags each line with the rank.
    PMIX_IOF_RANK_OUTPUT = "pmix.iof.rank": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Shows the time at which each line was read from its process.
    PMIX_IOF_TIMESTAMP_OUTPUT = "pmix.iof.ts": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Writes each line as an XML element.
    PMIX_IOF_XML_OUTPUT = "pmix.iof.xml": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Writes stderr and stddiag to stdout. For a program of a job: gives each rank one pipe for
    /// stdout and stderr.
    PMIX_IOF_MERGE_STDERR_STDOUT = "pmix.iof.mrg": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull Program;
    /// Writes parts of lines at once, without waiting for the ends of the lines.
    PMIX_IOF_OUTPUT_RAW = "pmix.iof.raw": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Writes the output of each rank to files with this name, followed by the job, the rank and
    /// "out" or "err".
    PMIX_IOF_OUTPUT_TO_FILE = "pmix.iof.file": Text, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Writes the output of each rank to files in this directory, below the job and the rank.
    PMIX_IOF_OUTPUT_TO_DIRECTORY = "pmix.iof.dir": Text, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// The name of the files is a pattern with placeholders.
    PMIX_IOF_FILE_PATTERN = "pmix.iof.fpt": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Whether output that goes to files does not go to stdout and stderr as well. True by default.
    PMIX_IOF_FILE_ONLY = "pmix.iof.fonly": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// Whether output goes to the program's own stdout and stderr. By default the output of
    /// registrations without a callback does, and that of jobs does not.
    PMIX_IOF_LOCAL_OUTPUT = "pmix.iof.local": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// The older name of `PMIX_IOF_TAG_OUTPUT`.
    PMIX_TAG_OUTPUT = "pmix.tagout": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// The older name of `PMIX_IOF_TIMESTAMP_OUTPUT`.
    PMIX_TIMESTAMP_OUTPUT = "pmix.tsout": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// The older name of `PMIX_IOF_MERGE_STDERR_STDOUT`, except for a program of a job.
    PMIX_MERGE_STDERR_STDOUT = "pmix.mergeerrout": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// The older name of `PMIX_IOF_OUTPUT_TO_FILE`.
    PMIX_OUTPUT_TO_FILE = "pmix.outfile": Text, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// The older name of `PMIX_IOF_OUTPUT_TO_DIRECTORY`.
    PMIX_OUTPUT_TO_DIRECTORY = "pmix.outdir": Text, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
    /// The older name of `PMIX_IOF_FILE_ONLY`.
    PMIX_OUTPUT_NOCOPY = "pmix.nocopy": Bool, at ToolInit ServerInit ServerSpawn ServerAdopt LibraryPull;
}
