// What an application does with Couchbase's Node.js SDK; see tests/interop/sdk_story.py, which tells the story and checks it.
'use strict'

const assert = require('assert/strict')
const readline = require('readline')
const couchbase = require('couchbase')

const { LookupInSpec, MutateInSpec } = couchbase
const NUMBER = 500
const HOUR = 60 * 60

const say = (...words) => process.stdout.write(words.join(' ') + '\n')
const passed = (name) => say('check', name)

async function connect([address, username, password, trustStorePath, certificate, key]) {
  const options = { timeouts: { connectTimeout: 60000, kvTimeout: 60000, managementTimeout: 60000 } }
  if (trustStorePath) options.security = { trustStorePath }
  if (certificate) options.authenticator = new couchbase.CertificateAuthenticator(certificate, key)
  else Object.assign(options, { username, password })
  return couchbase.connect(address, options)
}

async function aLine() {
  const lines = readline.createInterface({ input: process.stdin })
  await new Promise((resolve) => lines.once('line', resolve))
  lines.close()
}

async function main() {
  const cluster = await connect(process.argv.slice(2))
  const bucket = cluster.bucket('default')
  const manager = bucket.collections()
  await manager.createScope('market')
  await manager.createCollection('fruit', 'market')
  await manager.createCollection('passing', 'market', { maxExpiry: HOUR })
  await manager.createCollection('gone', 'market')
  say('ready')
  await aLine()

  const plain = bucket.defaultCollection()
  const fruit = bucket.scope('market').collection('fruit')
  await many('_default._default', plain)
  await many('market.fruit', fruit)
  await single(plain, fruit)
  await parts(fruit)
  await durable(fruit)
  await transactions(cluster, fruit)
  await collections(bucket, manager)
  say('done')
  await cluster.close()
}

// Reads what is ours to read, stores and removes; all at once, as such programs do.
async function many(name, documents) {
  const numbers = [...Array(NUMBER).keys()]
  await Promise.all(
    numbers.map(async (n) => {
      const { content } = await documents.get(`ours-${n}`)
      say('read', name, `ours-${n}`, Buffer.from(JSON.stringify(content)).toString('base64'))
    })
  )
  await Promise.all(
    numbers.map(async (n) => {
      await documents.upsert(`theirs-${n}`, { n, in: name })
      if (n % 10 === 0) await documents.remove(`theirs-${n}`)
    })
  )
}

async function single(plain, fruit) {
  await assert.rejects(plain.get('nobody'), couchbase.DocumentNotFoundError)
  await assert.rejects(plain.replace('nobody', 1), couchbase.DocumentNotFoundError)
  assert.equal((await plain.exists('nobody')).exists, false)
  passed('missing')

  const first = await plain.insert('apple', { n: 1 })
  await assert.rejects(plain.insert('apple', { n: 1 }), couchbase.DocumentExistsError)
  assert.equal((await plain.exists('apple')).exists, true)
  passed('exists')

  await plain.replace('apple', { n: 2 }, { cas: first.cas })
  await assert.rejects(plain.replace('apple', { n: 9 }, { cas: first.cas }), couchbase.CasMismatchError)
  await assert.rejects(plain.remove('apple', { cas: first.cas }), couchbase.CasMismatchError)
  passed('cas')

  let locked = await plain.getAndLock('apple', 30)
  await assert.rejects(plain.upsert('apple', 9, { timeout: 1000 }))
  await plain.replace('apple', { n: 3 }, { cas: locked.cas })
  locked = await plain.getAndLock('apple', 30)
  await plain.unlock('apple', locked.cas)
  passed('locked')

  const lime = { a: { b: 1 }, c: 2, d: 3 }
  const left = async () => (await fruit.get('lime', { withExpiry: true })).expiryTime - Date.now() / 1000
  await fruit.upsert('lime', lime, { expiry: HOUR })
  assert(Math.abs((await left()) - HOUR) < 600)
  await fruit.touch('lime', 2 * HOUR)
  assert(Math.abs((await left()) - 2 * HOUR) < 600)
  await fruit.replace('lime', lime, { preserveExpiry: true })
  assert(Math.abs((await left()) - 2 * HOUR) < 600)
  passed('expiry')

  const counters = plain.binary()
  assert.equal((await counters.increment('visits', 1, { initial: 10 })).value, 10)
  assert.equal((await counters.increment('visits', 7)).value, 17)
  assert.equal((await counters.decrement('visits', 2)).value, 15)
  passed('counter')

  const transcoder = new couchbase.RawBinaryTranscoder()
  await fruit.upsert('line', Buffer.from('b'), { transcoder })
  await fruit.binary().append('line', Buffer.from('c'))
  await fruit.binary().prepend('line', Buffer.from('a'))
  assert.equal((await fruit.get('line', { transcoder })).content.toString(), 'abc')
  passed('binary')

  assert.deepEqual((await fruit.get('lime', { project: ['a.b', 'c'] })).content, { a: { b: 1 }, c: 2 })
  passed('projection')
}

async function parts(fruit) {
  await fruit.upsert('parts', { name: 'plum', tags: ['a'], stock: { n: 4 } })
  const { content: found } = await fruit.lookupIn('parts', [
    LookupInSpec.get('name'),
    LookupInSpec.exists('none'),
    LookupInSpec.count('tags'),
    LookupInSpec.get('$document.CAS', { xattr: true }),
  ])
  assert.deepEqual([found[0].value, found[1].value, found[2].value], ['plum', false, 1])
  assert.match(found[3].value, /^0x[0-9a-f]{16}$/)
  passed('lookup')

  const changed = await fruit.mutateIn('parts', [
    MutateInSpec.upsert('owner.id', 'me', { xattr: true, createPath: true }),
    MutateInSpec.upsert('stock.place.row', 7, { createPath: true }),
    MutateInSpec.arrayAppend('tags', 'b'),
    MutateInSpec.arrayAddUnique('tags', 'c'),
    MutateInSpec.increment('stock.n', 38),
    MutateInSpec.remove('name'),
  ])
  assert.equal(changed.content[4].value, 42)
  passed('mutate')

  const attributes = await fruit.lookupIn('parts', [LookupInSpec.get('owner', { xattr: true })])
  assert.deepEqual(attributes.content[0].value, { id: 'me' })
  passed('attributes')

  const refused = (spec, error, key = 'parts') => assert.rejects(fruit.mutateIn(key, [spec]), error)
  await refused(MutateInSpec.replace('none', 1), couchbase.PathNotFoundError)
  await refused(MutateInSpec.arrayAppend('stock', 1), couchbase.PathMismatchError)
  await refused(MutateInSpec.insert('tags', 1), couchbase.PathExistsError)
  await refused(MutateInSpec.upsert('a', 1), couchbase.DocumentNotFoundError, 'nobody')
  const missing = await fruit.lookupIn('parts', [LookupInSpec.get('none')])
  assert(missing.content[0].error instanceof couchbase.PathNotFoundError)
  passed('paths')

  const sixteen = [...Array(16).keys()].map((n) => MutateInSpec.upsert(`p${n}`, n))
  const storeSemantics = couchbase.StoreSemantics.Upsert
  await fruit.mutateIn('many', sixteen, { storeSemantics })
  await assert.rejects(fruit.mutateIn('many', [...sixteen, MutateInSpec.upsert('p16', 16)], { storeSemantics }))
  passed('sixteen')
}

async function durable(fruit) {
  const { Majority, MajorityAndPersistOnMaster, PersistToMajority } = couchbase.DurabilityLevel
  for (const [n, durabilityLevel] of [Majority, MajorityAndPersistOnMaster, PersistToMajority].entries()) {
    await fruit.upsert('durable', { n: n + 1 }, { durabilityLevel })
    await fruit.upsert('passed', { n }, { durabilityLevel })
    await fruit.remove('passed', { durabilityLevel })
  }
  await fruit.mutateIn('durable', [MutateInSpec.increment('n', 1)], { durabilityLevel: Majority })
  assert.deepEqual((await fruit.get('durable')).content, { n: 4 })
  assert.equal((await fruit.exists('passed')).exists, false)
  passed('durable')

  const numbers = [...Array(NUMBER).keys()]
  const keys = (await fruit.scan(new couchbase.PrefixScan('theirs-'), { idsOnly: true })).map(({ id }) => id)
  assert.deepEqual(keys.sort(), numbers.filter((n) => n % 10).map((n) => `theirs-${n}`).sort())
  const found = await fruit.scan(new couchbase.PrefixScan('ours-1'))
  const wanted = numbers.filter((n) => String(n).startsWith('1'))
  assert.deepEqual(found.map(({ content }) => content.n).sort((a, b) => a - b), wanted)
  passed('scanned')
}

async function transactions(cluster, fruit) {
  const run = (work) => cluster.transactions().run(work)
  const n = async (key) => (await fruit.get(key)).content.n
  await run(async (attempt) => {
    await attempt.insert(fruit, 'bank-a', { n: 10 })
    await attempt.insert(fruit, 'bank-b', { n: 0 })
  })
  await run(async (attempt) => {
    const one = await attempt.get(fruit, 'bank-a')
    const other = await attempt.get(fruit, 'bank-b')
    await attempt.replace(one, { n: 7 })
    await attempt.replace(other, { n: 3 })
  })
  assert.deepEqual([await n('bank-a'), await n('bank-b')], [7, 3])
  const broken = run(async (attempt) => {
    await attempt.replace(await attempt.get(fruit, 'bank-a'), { n: -1 })
    await attempt.insert(fruit, 'bank-c', { n: 1 })
    throw new Error("the application's own")
  })
  await assert.rejects(broken, couchbase.TransactionFailedError)
  assert.equal(await n('bank-a'), 7)
  assert.equal((await fruit.exists('bank-c')).exists, false)
  await run(async (attempt) => attempt.remove(await attempt.get(fruit, 'bank-b')))
  assert.equal((await fruit.exists('bank-b')).exists, false)
  passed('transacted')
}

async function collections(bucket, manager) {
  const nowhere = bucket.scope('market').collection('nowhere')
  await assert.rejects(nowhere.get('apple', { timeout: 3000 }), (error) => !(error instanceof couchbase.DocumentNotFoundError))
  passed('unknown')

  const passing = bucket.scope('market').collection('passing')
  await passing.upsert('pear', { n: 1 })
  const { expiryTime } = await passing.get('pear', { withExpiry: true })
  assert(Math.abs(expiryTime - Date.now() / 1000 - HOUR) < 600)
  passed('passing')

  const names = (await manager.getAllScopes()).flatMap((scope) => scope.collections.map(({ name }) => `${scope.name}.${name}`))
  assert.deepEqual(names.sort(), ['_default._default', 'market.fruit', 'market.gone', 'market.passing'])
  await assert.rejects(manager.createScope('market'), couchbase.ScopeExistsError)
  await assert.rejects(manager.createCollection('fruit', 'market'), couchbase.CollectionExistsError)
  await assert.rejects(manager.createCollection('fruit', 'nowhere'), couchbase.ScopeNotFoundError)
  passed('listed')

  await assert.rejects(manager.updateCollection('passing', 'market', { maxExpiry: 60 }))
  passed('altered')

  const gone = bucket.scope('market').collection('gone')
  await gone.upsert('pear', { n: 1 })
  await manager.dropCollection('gone', 'market')
  await assert.rejects(manager.dropCollection('gone', 'market'), couchbase.CollectionNotFoundError)
  await assert.rejects(gone.get('pear', { timeout: 3000 }))
  passed('dropped')
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
