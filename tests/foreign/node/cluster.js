// The cluster clients of ioredis and node-redis: node cluster.js PORT... prints a line for each step.
// They write until "go" arrives on standard input, then once more.
'use strict'

const Redis = require('ioredis')
const { createCluster } = require('redis')

const ports = process.argv.slice(2).map(Number)

async function main () {
  const io = new Redis.Cluster(ports.map(port => ({ host: '127.0.0.1', port })), { scaleReads: 'slave' })
  const node = createCluster({ rootNodes: ports.map(port => ({ url: `redis://127.0.0.1:${port}` })), useReplicas: true })
  node.on('error', () => {})
  await node.connect()
  await io.set('a', 0)
  await node.set('b', 0)
  console.log(await io.incr('a'), await node.incr('b'))
  console.log(io.nodes('master').length, io.nodes('slave').length, node.masters.length)
  await new Promise(resolve => process.stdin.once('data', resolve))
  console.log(await io.incr('a'), await node.incr('b'))
  io.disconnect()
  await node.close()
  process.stdin.destroy()
}

main().catch(error => {
  console.log('failed:', error)
  process.exit(1)
})
