//! What opens and runs a library: all but the interfaces to it (`api.zig`, `forge_run.zig`). A module of its own, because
//! it is compiled with the language's checks: it reads what others wrote.
pub const abi = @import("abi.zig");
pub const message = @import("message.zig");
pub const model = @import("model.zig");
pub const platform = @import("platform.zig");
pub const pool = @import("pool.zig");
pub const program = @import("program.zig");
pub const session = @import("session.zig");
pub const signature = @import("signature.zig");
