-- The spaces of a server as objects of the program that runs it, in the shape of box.space.
local load = select(2, ...)

local E = load('cord.error')
local msgpack = load('cord.msgpack')
local tuples = load('cord.netbox.tuple')

-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, every, next, setmetatable, tostring, tonumber, rawget =
    type, pairs, next, setmetatable, tostring, tonumber, rawget
local encode, map_mt = msgpack.encode, msgpack.map_mt
local format = string.format

local SELECT, INSERT, REPLACE, UPDATE, DELETE, UPSERT = 1, 2, 3, 4, 5, 9
local SPACE_ID, INDEX_ID, LIMIT, OFFSET, ITERATOR, INDEX_BASE = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15
local FETCH_POSITION, KEY, TUPLE, OPS, AFTER_POSITION, AFTER_TUPLE = 0x1f, 0x20, 0x21, 0x28, 0x2e, 0x2f
local DATA, POSITION = 0x30, 0x35
local ITERATOR_TYPE = 72
local ITERATORS = { EQ = 0, REQ = 1, ALL = 2, LT = 3, LE = 4, GE = 5, GT = 6, NP = 12, PP = 13 }
local ALL, EQ = 2, 0
local NO_LIMIT = 4294967295
local VSPACE, VINDEX = 281, 289
-- The first id of a user's space.
local FIRST_ID = 512
-- What a space object shows of its row in _space.
local COLUMNS = { engine = 4, field_count = 5 }
local COLLATIONS = { [0] = 'none', 'unicode', 'unicode_ci', 'binary' }

local function fail(message, level)
    return E.raise(E.illegal_params(message), (level or 2) + 1)
end

return function(raw)
    -- Raises what a raw function refused.
    local function check(level, ok, code, kind, message, fields)
        if ok ~= nil then
            return ok, code
        end
        local payload = fields and #fields > 0 and msgpack.decode(fields) or nil
        local e = E.decode_stack({ { type = kind, message = message, file = '', code = code, fields = payload } })
        return E.raise(e, level + 1)
    end

    -- The definitions of a server have changed: clients are told.
    local function redefined(number)
        raw.show_accounts(number)
        raw.broadcast(number, 'box.schema', { version = raw.schema_version(number) })
    end

    local function array(value, what)
        if type(value) ~= 'table' then
            return fail(format('%s: a table expected, got %s', what, type(value)), 4)
        end
        return value
    end

    local function key_of(key)
        if key == nil then
            return {}
        elseif type(key) == 'table' then
            return key
        end
        return { key }
    end

    local function options_of(opts)
        if opts == nil or next(opts) == nil then
            return encode(nil)
        end
        return encode(opts)
    end

    -- The metatables of the tuples of each space, by server; made anew when a schema changes.
    local metas = {}

    local function meta_of(number, id)
        local version = raw.schema_version(number)
        local known = metas[number]
        if known == nil or known.version ~= version then
            known = { version = version }
            metas[number] = known
        end
        local meta = known[id]
        if meta == nil then
            meta = tuples.metatable_of(raw.format_of(number, id))
            known[id] = meta
        end
        return meta
    end

    local function run(number, kind, body)
        local result = check(3, raw.statement(number, kind, encode(setmetatable(body, map_mt))))
        local list = result[DATA]
        if list[1] ~= nil then
            local meta = meta_of(number, body[SPACE_ID])
            for i = 1, #list do
                setmetatable(list[i], meta)
            end
        end
        return result
    end

    local function iterator_of(opts, key)
        if opts ~= nil and type(opts) ~= 'table' then
            return E.raise_at_caller(E.illegal_params('options should be a table'))
        end
        local name = opts ~= nil and opts.iterator or nil
        if name == nil then
            return #key == 0 and ALL or EQ
        elseif type(name) == 'number' then
            return name
        end
        local iterator = ITERATORS[tostring(name):upper()]
        if iterator == nil then
            return E.raise(E.client(ITERATOR_TYPE, format("Unknown iterator type '%s'", tostring(name))), 4)
        end
        return iterator
    end

    local function check_self(self, kind, name)
        if type(self) ~= 'table' or rawget(self, '_number') == nil then
            return fail(format('Use %s:%s(...) instead of %s.%s(...)', kind, name, kind, name), 3)
        end
    end

    -- ------------------------------------------------------------ indexes

    local index_methods = {}
    local index_meta = { __index = index_methods }

    local function scan(self, key, opts, iterator, limit)
        local body = {
            [SPACE_ID] = self.space_id,
            [INDEX_ID] = self.id,
            [KEY] = key,
            [ITERATOR] = iterator,
            [LIMIT] = limit,
            [OFFSET] = opts ~= nil and opts.offset or 0,
        }
        local after = opts ~= nil and opts.after or nil
        if type(after) == 'string' then
            body[AFTER_POSITION] = after
        elseif after ~= nil then
            body[AFTER_TUPLE] = after
        end
        if opts ~= nil and opts.fetch_pos then
            body[FETCH_POSITION] = true
        end
        return run(self._number, SELECT, body)
    end

    function index_methods.select(self, key, opts)
        check_self(self, 'index', 'select')
        key = key_of(key)
        local body = scan(self, key, opts, iterator_of(opts, key), opts ~= nil and opts.limit or NO_LIMIT)
        if opts ~= nil and opts.fetch_pos then
            return body[DATA], body[POSITION] or ''
        end
        return body[DATA]
    end

    local function one(name)
        return function(self, key)
            check_self(self, 'index', name)
            local tuple = check(2, raw.get(self._number, self.space_id, self.id, encode(key_of(key)), name))
            return tuple and setmetatable(tuple, meta_of(self._number, self.space_id)) or nil
        end
    end

    index_methods.get = one('get')
    index_methods.min = one('min')
    index_methods.max = one('max')

    function index_methods.count(self, key, opts)
        check_self(self, 'index', 'count')
        key = key_of(key)
        return (check(2, raw.count(self._number, self.space_id, self.id, iterator_of(opts, key), encode(key))))
    end

    function index_methods.len(self)
        check_self(self, 'index', 'len')
        return (check(2, raw.len(self._number, self.space_id, self.id)))
    end

    function index_methods.update(self, key, ops)
        check_self(self, 'index', 'update')
        return run(self._number, UPDATE, {
            [SPACE_ID] = self.space_id,
            [INDEX_ID] = self.id,
            [INDEX_BASE] = 1,
            [KEY] = key_of(key),
            [TUPLE] = array(ops, 'index:update(key, ops)'),
        })[DATA][1]
    end

    function index_methods.delete(self, key)
        check_self(self, 'index', 'delete')
        return run(self._number, DELETE, {
            [SPACE_ID] = self.space_id,
            [INDEX_ID] = self.id,
            [KEY] = key_of(key),
        })[DATA][1]
    end

    -- Goes on from the last tuple of each portion, so changes meanwhile do no harm.
    function index_methods.pairs(self, key, opts)
        check_self(self, 'index', 'pairs')
        key = key_of(key)
        local iterator, after = iterator_of(opts, key), opts ~= nil and opts.after or nil
        local portion, at = {}, 0
        return function()
            at = at + 1
            if portion[at] == nil then
                portion = scan(self, key, { after = after }, iterator, 100)[DATA]
                at = 1
                if portion[1] == nil then
                    return nil
                end
                after = portion[#portion]
            end
            return portion[at], portion[at]
        end
    end

    function index_methods.drop(self)
        check_self(self, 'index', 'drop')
        check(2, raw.drop_index(self._number, self.space_id, self.id))
        redefined(self._number)
    end

    -- The parts of an index as box.space shows them.
    local function parts_of(list)
        local parts = {}
        for i, part in every(list) do
            parts[i] = {
                fieldno = (part.field or part[1]) + 1,
                type = part.type or part[2],
                is_nullable = part.is_nullable or false,
                exclude_null = part.exclude_null,
                sort_order = part.sort_order,
                collation = part.collation and COLLATIONS[part.collation],
            }
        end
        return parts
    end

    local function index_of(number, row)
        return setmetatable({
            _number = number,
            space_id = row[1],
            id = row[2],
            name = row[3],
            type = row[4]:upper(),
            unique = row[5].unique == true,
            parts = parts_of(row[6]),
        }, index_meta)
    end

    -- ------------------------------------------------------------ spaces

    local space_methods = {}
    local forget
    local space_meta = {}

    -- The rows of a system view whose key starts with `key`.
    local function rows(number, view, index, key)
        local body = setmetatable({
            [SPACE_ID] = view,
            [INDEX_ID] = index,
            [KEY] = key,
            [ITERATOR] = EQ,
            [LIMIT] = NO_LIMIT,
            [OFFSET] = 0,
        }, map_mt)
        return check(3, raw.statement(number, SELECT, encode(body)))[DATA]
    end

    local indexes_meta = {
        __index = function(self, name)
            local space = rawget(self, '_space')
            local by_id = type(name) == 'number'
            if not by_id and type(name) ~= 'string' then
                return nil
            end
            for _, row in every(rows(space._number, VINDEX, 0, { space.id })) do
                if row[by_id and 2 or 3] == name then
                    return index_of(space._number, row)
                end
            end
        end,
    }

    function space_meta.__index(self, key)
        if key == 'index' then
            return setmetatable({ _space = self }, indexes_meta)
        end
        local column = COLUMNS[key]
        if column then
            local row = rows(self._number, VSPACE, 0, { self.id })[1]
            return row and row[column]
        end
        return space_methods[key]
    end

    local function space_object(number, id, name)
        return setmetatable({ _number = number, id = id, name = name }, space_meta)
    end

    local function primary(self, name)
        check_self(self, 'space', name)
        return setmetatable({ _number = self._number, space_id = self.id, id = 0 }, index_meta)
    end

    for _, name in every({ 'select', 'get', 'min', 'max', 'count', 'len', 'update', 'delete', 'pairs' }) do
        local method = index_methods[name]
        space_methods[name] = function(self, key, argument)
            return method(primary(self, name), key, argument)
        end
    end

    local function put(name, kind)
        return function(self, tuple)
            check_self(self, 'space', name)
            return run(self._number, kind, {
                [SPACE_ID] = self.id,
                [TUPLE] = array(tuple, 'space:' .. name .. '(tuple)'),
            })[DATA][1]
        end
    end

    space_methods.insert = put('insert', INSERT)
    space_methods.replace = put('replace', REPLACE)
    space_methods.put = space_methods.replace

    function space_methods.upsert(self, tuple, ops)
        check_self(self, 'space', 'upsert')
        run(self._number, UPSERT, {
            [SPACE_ID] = self.id,
            [INDEX_BASE] = 1,
            [TUPLE] = array(tuple, 'space:upsert(tuple, ops)'),
            [OPS] = array(ops, 'space:upsert(tuple, ops)'),
        })
    end

    function space_methods.create_index(self, name, opts)
        check_self(self, 'space', 'create_index')
        if type(name) ~= 'string' then
            return fail('space:create_index(name, opts): a string expected as argument 1, got ' .. type(name))
        elseif opts ~= nil and type(opts) ~= 'table' then
            return fail('options should be a table')
        end
        check(2, raw.create_index(self._number, self.id, name, options_of(opts)))
        redefined(self._number)
        return self.index[name]
    end

    --- The format, or sets it.
    function space_methods.format(self, new)
        check_self(self, 'space', 'format')
        if new == nil then
            local row = rows(self._number, VSPACE, 0, { self.id })[1]
            return row and row[7]
        end
        check(2, raw.set_format(self._number, self.id, encode(new)))
        redefined(self._number)
    end

    function space_methods.truncate(self)
        check_self(self, 'space', 'truncate')
        check(2, raw.truncate(self._number, self.id))
    end

    function space_methods.drop(self)
        check_self(self, 'space', 'drop')
        check(2, raw.drop_space(self._number, self.id))
        forget(self._number, self.id, self.name)
        redefined(self._number)
    end

    -- ------------------------------------------------------------ all spaces of a server

    -- The spaces of each server by number: one object a space, under its name and its id. System spaces are made when
    -- they are asked for.
    local all = {}

    local function spaces_of(number)
        local spaces = setmetatable({}, {
            __index = function(_, name)
                local is_id = type(name) == 'number'
                local id = is_id and name or type(name) == 'string' and raw.space_id(number, name)
                name = is_id and raw.space_name(number, id) or name
                return id and type(name) == 'string' and space_object(number, id, name) or nil
            end,
        })
        all[number] = spaces
        return spaces
    end

    local function remember(number, id, name)
        local space = space_object(number, id, name)
        all[number][id], all[number][name] = space, space
        return space
    end

    function forget(number, id, name)
        all[number][id], all[number][name] = nil, nil
    end

    local function created(number, name, opts)
        local id = tonumber((check(3, raw.create_space(number, name, options_of(opts)))))
        redefined(number)
        return rawget(all[number], id) or remember(number, id, name)
    end

    -- All spaces are others.
    local function restored(number)
        for key in every(all[number]) do
            all[number][key] = nil
        end
        for _, row in every(rows(number, VSPACE, 0, {})) do
            if row[1] >= FIRST_ID then
                remember(number, row[1], row[3])
            end
        end
        redefined(number)
    end

    -- The server is gone.
    local function ended(number)
        all[number], metas[number] = nil, nil
    end

    return spaces_of, created, restored, ended
end
