"""Every error of the library.

StepwellError
├── UsageError (also RuntimeError)             the call is not allowed here
│   ├── WrongLoop                              a storage is used in a loop that did not open it
│   ├── AlreadyHeld                            a task claims a key that it, or its parent task, holds
│   ├── ContextClosed                          a context is used after its block
│   └── InsideLoop                             a sync function is called where it would block a loop
├── InvalidKey (also TypeError, ValueError)    a key or a name of an unsupported type or value
├── InvalidOption (also ValueError)            an unknown option, or an invalid value
│   └── InvalidName                            a name with a control character
├── UnknownScheme (also ValueError)            no installed backend supports the URL
├── MissingExtra (also ImportError)            an optional package is not installed
├── ExtraTooOld (also ImportError)             the installed optional package is too old
├── Unsupported (also NotImplementedError)     this backend does not have that optional feature
├── EncodeError (also TypeError, ValueError)   a value that cannot be stored, with its path and type
│   └── Unstorable                             the state after a node of a durable run cannot be stored
├── TooLarge (also ValueError)                 a key, value or record exceeds its limit
├── StoredDataError                            stored data cannot be decoded
│   ├── CorruptRecord                          stored data has changed: checksum, syntax or limits
│   │   └── RunReplaced                        the state of a run was replaced from outside; it cannot continue
│   ├── UnknownType                            a stored type that is not registered here
│   ├── KeyMissing                             encrypted with a key that the reader does not have
│   ├── NotEncrypted                           plaintext in an encrypted storage
│   ├── DamagedStorage                         the structure of the store is damaged
│   └── NewerSchema                            written by a newer release
├── Conflict                                   another task or process changed or holds the record
│   ├── Busy (also TimeoutError)               the key was still claimed after the waiting time
│   │   └── RunBusy                            the run is still running elsewhere
│   ├── LeaseLost                              the claim expired; nothing was written
│   ├── RecordExists                           there is a record already; nothing was written
│   ├── RecordReplaced                         cleared or replaced while held; nothing was written
│   └── VersionChanged                         not the expected version; nothing was written
├── InvalidFlow (also TypeError, ValueError)   an invalid flow, found when it is defined
├── TransitionError (also ValueError)          a move that the flow does not declare
├── MigrationError (also ValueError)           a record that its flow's migrate() cannot convert
├── UnknownFlowError (also LookupError)        a flow that is not registered here
├── UnknownStateError (also LookupError)       a stored state that is no longer declared
├── NoKeyError (also LookupError)              a change without a key in the update
├── DuplicateUpdate                            this update was handled before
├── UnknownOutcome (also RuntimeError)         a call that must not run twice was interrupted; it may have run
├── FieldError (also TypeError, ValueError)    a field that the flow's data type does not allow
├── IncompleteData (also ValueError)           data that lacks fields of the requested type
├── StorageError
│   ├── StorageUnavailable (also ConnectionError)   not reachable; nothing was written
│   ├── OutcomeUnknown (also ConnectionError)       sent but not answered; it may be applied
│   │   └── NotReplicated                           applied, but on no replica; a failover may lose it
│   ├── StorageFull (also OSError)                  full; nothing was written
│   ├── NotCopied                                   source and target differ after a copy
│   └── StorageClosed                               the storage was closed
├── BotApiError                                the Bot API refused a call
│   ├── BotBlocked                             the bot was blocked or removed, or the account is deleted
│   └── BotUnavailable (also ConnectionError)  no usable answer within the patience of the client
└── NodeFlowError                              a node flow, or a result of one of its nodes
    ├── InvalidAnswer (also ValueError)             an answer does not fit the accepts= of its wait
    ├── InvalidGraph (also ValueError)              the graph is invalid; nothing has run
    ├── InvalidAction (also TypeError)              post returned no valid action
    ├── UnknownAction (also LookupError)            a named action without an edge
    ├── InvalidItems (also TypeError)               prep of a batch returned no collection of items
    ├── NodeTimeout (also TimeoutError)             one attempt of an exec took too long
    ├── TooManySteps (also RuntimeError)            more nodes visited than max_steps
    ├── MergeConflict (also ValueError)             two branches changed one field
    ├── WorkCancelled (also RuntimeError)           a node, item or branch was cancelled from inside
    ├── NodeExited (also RuntimeError)              a node of a durable run raised SystemExit or similar
    ├── KeptError                                   an error that was stored with a run
    ├── ExecutorError (also RuntimeError)           a value cannot be sent to an executor or back
    ├── Parked                                      a run waits for an answer or a time
    │   └── RunPaused                               a run was paused
    ├── RunExists (also ValueError)                 a run with this id exists already
    ├── UnknownRun (also LookupError)               no run with this id exists
    ├── UnknownSchedule (also LookupError)          no schedule with this name exists
    ├── RunFinished (also RuntimeError)             the run has ended and cannot be resumed
    ├── RunFailed (also RuntimeError)               the run has failed, so it has no result
    ├── RunCancelled (also RuntimeError)            the run was cancelled
    ├── RunStuck (also RuntimeError)                the run cannot continue by itself
    └── FlowChanged (also ValueError)               the run does not fit the present graph of its flow
        └── RunIsNewer                              a newer release has written the run
"""

from stepwell.errors.base import (
    AlreadyHeld,
    ExtraTooOld,
    InsideLoop,
    InvalidName,
    InvalidOption,
    MissingExtra,
    StepwellError,
    UnknownOutcome,
    Unsupported,
    UsageError,
    WrongLoop,
)
from stepwell.errors.fsm import (
    ContextClosed,
    DuplicateUpdate,
    FieldError,
    IncompleteData,
    InvalidFlow,
    MigrationError,
    NoKeyError,
    TransitionError,
    UnknownFlowError,
    UnknownStateError,
)
from stepwell.errors.nodes import (
    ExecutorError,
    InvalidAction,
    InvalidAnswer,
    InvalidGraph,
    InvalidItems,
    KeptError,
    MergeConflict,
    NodeExited,
    NodeFlowError,
    NodeTimeout,
    TooManySteps,
    UnknownAction,
    Unstorable,
    WorkCancelled,
)
from stepwell.errors.runs import (
    FlowChanged,
    Parked,
    RunBusy,
    RunCancelled,
    RunExists,
    RunFailed,
    RunFinished,
    RunIsNewer,
    RunPaused,
    RunReplaced,
    RunStuck,
    UnknownRun,
    UnknownSchedule,
)
from stepwell.errors.storage import (
    Busy,
    Conflict,
    EncodeError,
    InvalidKey,
    LeaseLost,
    NotCopied,
    NotReplicated,
    OutcomeUnknown,
    RecordExists,
    RecordReplaced,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageUnavailable,
    TooLarge,
    UnknownScheme,
    VersionChanged,
)
from stepwell.errors.stored_data import (
    CorruptRecord,
    DamagedStorage,
    KeyMissing,
    NewerSchema,
    NotEncrypted,
    StoredDataError,
    UnknownType,
)
from stepwell.errors.telegram import BotApiError, BotBlocked, BotUnavailable

__all__ = [
    "AlreadyHeld",
    "BotApiError",
    "BotBlocked",
    "BotUnavailable",
    "Busy",
    "Conflict",
    "ContextClosed",
    "CorruptRecord",
    "DamagedStorage",
    "DuplicateUpdate",
    "EncodeError",
    "ExecutorError",
    "ExtraTooOld",
    "FieldError",
    "FlowChanged",
    "IncompleteData",
    "InsideLoop",
    "InvalidAction",
    "InvalidAnswer",
    "InvalidFlow",
    "InvalidGraph",
    "InvalidItems",
    "InvalidKey",
    "InvalidName",
    "InvalidOption",
    "KeptError",
    "KeyMissing",
    "LeaseLost",
    "MergeConflict",
    "MigrationError",
    "MissingExtra",
    "NewerSchema",
    "NoKeyError",
    "NodeExited",
    "NodeFlowError",
    "NodeTimeout",
    "NotCopied",
    "NotEncrypted",
    "NotReplicated",
    "OutcomeUnknown",
    "Parked",
    "RecordExists",
    "RecordReplaced",
    "RunBusy",
    "RunCancelled",
    "RunExists",
    "RunFailed",
    "RunFinished",
    "RunIsNewer",
    "RunPaused",
    "RunReplaced",
    "RunStuck",
    "StepwellError",
    "StorageClosed",
    "StorageError",
    "StorageFull",
    "StorageUnavailable",
    "StoredDataError",
    "TooLarge",
    "TooManySteps",
    "TransitionError",
    "UnknownAction",
    "UnknownFlowError",
    "UnknownOutcome",
    "UnknownRun",
    "UnknownSchedule",
    "UnknownScheme",
    "UnknownStateError",
    "UnknownType",
    "Unstorable",
    "Unsupported",
    "UsageError",
    "VersionChanged",
    "WorkCancelled",
    "WrongLoop",
]
