-- Spaces and indexes as the schema describes them, and the methods a script calls on them.
local _, load = ...

local tuples = load('cord.netbox.tuple')

-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, setmetatable, rawget, every, ipairs, tostring = type, setmetatable, rawget, pairs, ipairs, tostring

-- ---------------------------------------------------------------- rows into objects

local function part_of(part, collations)
    local result = { type = part.type or part[2] or 'any', fieldno = (part.field or part[1]) + 1 }
    if part.is_nullable then
        result.is_nullable = true
    end
    if part.exclude_null then
        result.exclude_null = true
    end
    if part.path ~= nil then
        result.path = part.path
    end
    if part.collation ~= nil then
        local name = collations[part.collation]
        if name ~= nil then
            result.collation = name
        else
            result.collation_id = part.collation
        end
    end
    if result.is_nullable == nil then
        result.is_nullable = false
    end
    return result
end

local function index_of(space, row, collations, sequences)
    local opts = row[5]
    local unique = true
    if type(opts) == 'table' then
        unique = opts.unique ~= false
    elseif type(opts) == 'number' then
        unique = opts ~= 0
    end
    local index = {
        space = space,
        id = row[2],
        name = row[3],
        type = row[4]:upper(),
        unique = unique,
        parts = {},
    }
    if type(row[6]) == 'table' then
        for i, part in ipairs(row[6]) do
            index.parts[i] = part_of(part, collations)
        end
    elseif type(row[6]) == 'number' then
        for i = 1, row[6] do
            index.parts[i] = { fieldno = row[7 + 2 * (i - 1)] + 1, type = row[8 + 2 * (i - 1)], is_nullable = false }
        end
    end
    local sequence = sequences[space.id]
    if sequence ~= nil and index.id == 0 then
        index.sequence_id = sequence[2]
        index.sequence_fieldno = (sequence[4] or 0) + 1
        if sequence[5] ~= nil and sequence[5] ~= '' then
            index.sequence_path = sequence[5]
        end
    end
    return index
end

-- The number under which requests name the metatable of a format.
local function reference(core, rc, p, format)
    local meta = tuples.metatable_of(format)
    local number = p.references[meta]
    if number == nil then
        p.last_reference = p.last_reference + 1
        number = p.last_reference
        core.raw.anchor(rc, number, meta)
        p.references[meta] = number
    end
    return number
end

local function plain_format(row)
    local format = {}
    for i, field in ipairs(type(row[7]) == 'table' and row[7] or {}) do
        local copy = {}
        for k, v in every(field) do
            copy[k] = v
        end
        copy.name = tostring(copy.name or copy[1])
        format[i] = copy
    end
    return format
end

local function space_of(core, conn, rc, p, row, known)
    local space = known or setmetatable({}, core.space_mt)
    space.id, space.name, space.engine, space.field_count = row[1], row[3], row[4], row[5]
    space.enabled = true
    space.connection = conn
    space.index = {}
    space._id_or_name = row[1]
    local flags = type(row[6]) == 'table' and row[6] or {}
    space.temporary = flags.temporary == true or flags.type == 'temporary' or flags.type == 'data-temporary'
    space.is_sync = flags.is_sync == true
    space._format = plain_format(row)
    -- Times 8: the shape of a result is added to it.
    space._reference = 8 * reference(core, rc, p, space._format)
    return space
end

return function(core, conn, rc, p, rows)
    local collations, sequences, old, spaces = {}, {}, conn._spaces or {}, {}
    for _, row in ipairs(rows[277] or {}) do
        collations[row[1]] = row[2]
    end
    for _, row in ipairs(rows[341] or {}) do
        sequences[row[1]] = row
    end
    local by_key, lazy, others = {}, conn._spaces == nil and conn.space or {}, {}
    for _, row in ipairs(rows[281]) do
        -- Objects somebody got before the schema was there become whole: by name, and another one by id.
        local by_name, by_id = rawget(lazy, row[3]), rawget(lazy, row[1])
        local space = space_of(core, conn, rc, p, row, old[row[1]] or by_name or by_id)
        spaces[space.id] = space
        by_key[space.id], by_key[space.name] = space, space
        if by_id ~= nil and by_id ~= space then
            others[space] = space_of(core, conn, rc, p, row, by_id)
        end
    end
    for _, row in ipairs(rows[289]) do
        local space = spaces[row[1]]
        if space ~= nil then
            local index = setmetatable(index_of(space, row, collations, sequences), core.index_mt)
            space.index[index.id], space.index[index.name] = index, index
        end
    end
    for space, other in every(others) do
        other.index = space.index
    end
    conn._spaces = spaces
    conn.space = by_key
    return spaces
end
