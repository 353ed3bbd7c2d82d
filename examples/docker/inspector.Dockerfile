# The inspector, read-only, for the storage of a bot that runs elsewhere. Build it in the folder of the bot, so that it has
# the code of your flows. ("stepwell new bot" writes a Dockerfile for the bot itself.)
#   docker build -f inspector.Dockerfile -t inspector .
#   docker run -p 127.0.0.1:8080:8080 -e STEPWELL_STORAGE=postgresql://... inspector
# It prints the address with its token.
FROM python:3.13-slim
RUN pip install --no-cache-dir "stepwell[inspector,redis,postgres]" && useradd --create-home stepwell
USER stepwell
WORKDIR /app
COPY --chown=stepwell . .
CMD ["stepwell", "inspect", "--host", "0.0.0.0", "--port", "8080"]
