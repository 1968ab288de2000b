"""What commands say, frozen before a rebuild and held to it afterwards: findings, exit codes, words, pages.

`python -m benchmarks.goldens freeze FOLDER` runs every case and keeps what it gave; `compare FOLDER` runs them again
and tells what is not the same. Cases that were kept are not run again, so both go on where they were killed.
"""
