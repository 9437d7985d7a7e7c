//! Runs the one model that is linked into the same image, without an operating system: no heap, no files, no threads.
//! Its program, which `packaging/objects.py` found to be calls of kernels on tensors of known sizes, and views of these,
//! is read where it lies; all that is written lies in the caller's memory. The `model.h` that comes with it is the
//! interface.
const std = @import("std");
const abi = @import("abi.zig");
const Kind = @import("program.zig").Kind;

pub const panic = std.debug.no_panic;

const Function = extern struct { rows: [*]const i64, row_count: u32, code_words: u32, code: [*]const i64 };

/// What is linked in. `offsets` has those of weights; `kept` and the rest are where parts of the caller's memory start,
/// behind the values between kernels: prepared weights, workspaces of kernels, and the tables of a session.
const Model = extern struct {
    kernels: [*]const abi.Kernel,
    offsets: [*]const u32,
    weights: [*]const u8,
    constants: [*]const u8,
    main: Function,
    prepare: Function,
    memory: usize,
    kept: usize,
    workspace: usize,
    tables: usize,
    inputs: u32,
    prepared: u32,
    most_arguments: u32,
};

extern const forge_linked_model: Model;

const ok = 0;
const bad_memory = 1;
const bad_input = 6;
const bad_kernel = 7;
const call = 1;
const view = 5;

/// Tables of a session: pointers to what is prepared, arguments of a call, and the tensors of the function that runs.
const Session = struct {
    memory: [*]u8,

    fn prepared(session: Session) [*][*]u8 {
        return @ptrCast(@alignCast(session.memory + forge_linked_model.tables));
    }

    fn arguments(session: Session) [*]abi.Any {
        const before = std.mem.alignForward(usize, forge_linked_model.prepared * @sizeOf(usize), 16);
        return @ptrCast(@alignCast(session.memory + forge_linked_model.tables + before));
    }

    fn tensors(session: Session) [*]abi.Tensor {
        return @ptrCast(@alignCast(session.arguments() + forge_linked_model.most_arguments));
    }

    fn place(session: Session, function: *const Function, inputs: ?[*]const [*]u8) void {
        const m = &forge_linked_model;
        var w = function.rows;
        for (session.tensors()[0..function.row_count]) |*tensor| {
            const rank: usize = @intCast(w[1]);
            const kind: Kind = @fromBackingInt(w[2]);
            const where: usize = @intCast(w[3]);
            const dtype: u64 = @bitCast(w[0]);
            tensor.* = .{
                .data = switch (kind) {
                    .input => inputs.?[where],
                    .weight => @constCast(m.weights + m.offsets[where]),
                    .prepared => session.prepared()[where],
                    .constant => @constCast(m.constants + where),
                    .scratch => session.memory + where,
                    .kept => session.memory + m.kept + where,
                    else => null, // nothing else is in a program that runs straight
                },
                .rank = @intCast(rank),
                .dtype = .{ .code = @truncate(dtype), .bits = @truncate(dtype >> 8), .lanes = 1 },
                .shape = @constCast(w + 4),
            };
            w += 4 + rank;
        }
    }

    /// Call the kernels; the words of the results, or null where a kernel refused.
    fn follow(session: Session, function: *const Function) ?[]const i64 {
        var w = function.code;
        while (w[0] == call or w[0] == view) : (w += 2 + @as(usize, @intCast(w[1]))) {
            if (w[0] == view) continue; // its row has the place of what it views
            const count: usize = @intCast(w[3]);
            const arguments_ = session.arguments()[0..count];
            for (w[4 .. 4 + count], arguments_) |word, *argument| {
                argument.* = if (word & 3 == 0) .tensor(&session.tensors()[@intCast(word >> 2)]) else .integer(word >> 2);
            }
            workspace_next = session.memory + forge_linked_model.workspace;
            workspace_end = session.memory + forge_linked_model.tables;
            var result: abi.Any = .integer(0);
            if (forge_linked_model.kernels[@intCast(w[2])](null, arguments_.ptr, @intCast(count), &result) != 0) return null;
        }
        return w[3 .. 2 + @as(usize, @intCast(w[1]))];
    }
};

export fn forge_model_start(memory: ?*anyopaque, size: usize) c_int {
    if (memory == null or @intFromPtr(memory) % abi.alignment != 0 or size < forge_linked_model.memory) return bad_memory;
    const function = &forge_linked_model.prepare;
    if (function.code_words == 0) return ok;
    const session: Session = .{ .memory = @ptrCast(memory) };
    session.place(function, null);
    const results = session.follow(function) orelse return bad_kernel;
    for (results, session.prepared()) |tensor, *address| address.* = session.tensors()[@intCast(tensor)].data.?;
    return ok;
}

export fn forge_model_run(memory: ?*anyopaque, inputs: [*]const [*]u8, outputs: [*]const [*]u8) c_int {
    for (inputs[0..forge_linked_model.inputs]) |input| if (@intFromPtr(input) % abi.alignment != 0) return bad_input;
    const session: Session = .{ .memory = @ptrCast(memory orelse return bad_memory) };
    session.place(&forge_linked_model.main, inputs);
    const results = session.follow(&forge_linked_model.main) orelse return bad_kernel;
    for (results, outputs) |index, output| {
        const tensor = &session.tensors()[@intCast(index)];
        var size: usize = @intCast(tensor.dtype.width());
        for (tensor.shape[0..@intCast(tensor.rank)]) |extent| size *= @intCast(extent);
        @memcpy(output[0..size], tensor.data.?[0..size]);
    }
    return ok;
}

// ---- what kernels call ----

/// Workspaces are given back in the opposite order: they lie on a stack, which is empty when a kernel starts.
var workspace_next: [*]u8 = undefined;
var workspace_end: [*]u8 = undefined;

fn workspaceTake(_: c_int, _: c_int, size: u64, _: c_int, _: c_int) callconv(.c) ?*anyopaque {
    const taken = workspace_next;
    if (size > @intFromPtr(workspace_end) - @intFromPtr(taken)) return null;
    workspace_next += std.mem.alignForward(usize, @intCast(size), abi.alignment);
    return taken;
}

fn workspaceGive(_: c_int, _: c_int, memory: ?*anyopaque) callconv(.c) c_int {
    workspace_next = @ptrCast(memory);
    return ok;
}

fn launch(run: abi.Task, data: ?*anyopaque, _: c_int) callconv(.c) c_int {
    var group: abi.Group = .{ .sync = null, .tasks = 1 };
    return run(0, &group, data);
}

export const __TVMBackendAllocWorkspace = &workspaceTake;
export const __TVMBackendFreeWorkspace = &workspaceGive;
export const __TVMBackendParallelLaunch = &launch;

/// A kernel's refusal says why; nobody is here to read it.
export fn TVMFFIErrorSetRaisedFromCStrParts(_: ?[*:0]const u8, _: ?[*]const ?[*:0]const u8, _: i32) callconv(.c) void {}
