//! Files of samples: arrays one after another, as numpy.save writes them to one open file. One is in memory at a time.
const std = @import("std");
const npy = @import("npy.zig");
const message = @import("core").message;
const platform = @import("core").platform;
const Error = message.Error;

pub const Reader = struct {
    path: [:0]const u8,
    file: i32,
    memory: platform.Memory = &.{},

    pub fn open(path: [:0]const u8) Error!Reader {
        return .{ .path = path, .file = try platform.open(path) };
    }

    pub fn close(reader: *Reader) void {
        platform.unmap(reader.memory);
        platform.close(reader.file);
    }

    /// The next array, which lies in the reader's memory until the one after it; null at the end.
    pub fn next(reader: *Reader) Error!?npy.File {
        var text: [4096]u8 = undefined;
        const got = try platform.readUpTo(reader.file, reader.path, text[0..npy.first]);
        if (got == 0) return null;
        const place = try npy.place(reader.path, text[0..got]);
        const end = place.start + place.size;
        if (end < npy.first or end > text.len) return npy.wrong(reader.path, "a header of another length");
        try reader.fill(text[npy.first..end]);
        var found = try npy.described(reader.path, text[place.start..end]);
        if (reader.memory.len == 0 or found.array.size > reader.memory.len) {
            platform.unmap(reader.memory);
            reader.memory = &.{};
            reader.memory = try platform.map(found.array.size);
        }
        try reader.fill(reader.memory[0..found.array.size]);
        found.array.data = reader.memory.ptr;
        return found;
    }

    fn fill(reader: *Reader, into: []u8) Error!void {
        if (try platform.readUpTo(reader.file, reader.path, into) < into.len) return npy.wrong(reader.path, "a file that is cut off");
    }
};
